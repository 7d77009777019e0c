/* Model specs: what is accepted and how it is written out; what is refused and what the message says. */
#include "nn_support.h"

static void good_specs_are_filled_in(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        size_t default_vocab;
        const char *text;
    } rows[] = {
        {"mlp:784,1024,1024,10", 0, "mlp:784,1024,1024,10"},
        {"mlp:1,1", 0, "mlp:1,1"},
        {"mlp:007,2", 0, "mlp:7,2"},
        {"cnn", 0, "cnn"},
        {"cnn:dropout=0", 0, "cnn:dropout=0"},
        {"cnn:dropout=.125", 0, "cnn:dropout=.125"},
        {"cnn:norm=sync", 0, "cnn:norm=sync"},
        {"cnn:norm=batch,dropout=0", 0, "cnn:dropout=0,norm=batch"},
        {"cnn:norm=none", 0, "cnn"},
        {"resnet18:norm=sync", 0, "resnet18:channels=3,side=32,classes=10,width=64,norm=sync"},
        {"resnet18:norm=batch", 0, "resnet18:channels=3,side=32,classes=10,width=64"},
        {"resnet18", 0, "resnet18:channels=3,side=32,classes=10,width=64"},
        {"resnet18:channels=1", 0, "resnet18:channels=1,side=28,classes=10,width=64"},
        {"resnet18:width=4,classes=7,side=8,channels=2", 0,
         "resnet18:channels=2,side=8,classes=7,width=4"},
        {"gpt:layers=4,heads=4,width=128,context=64", 65,
         "gpt:layers=4,heads=4,width=128,context=64,vocab=65"},
        {"gpt:vocab=9,context=8,width=6,heads=3,layers=1", 65,
         "gpt:layers=1,heads=3,width=6,context=8,vocab=9"},
        {"gpt:layers=1,heads=1,width=2,context=3,vocab=4,dropout=0.1", 0,
         "gpt:layers=1,heads=1,width=2,context=3,vocab=4,dropout=0.1"},
        {"gpt:layers=1,heads=1,width=2,context=3,vocab=4,dropout=0", 0,
         "gpt:layers=1,heads=1,width=2,context=3,vocab=4"},
        {"gpt2-124m", 0, "gpt:layers=12,heads=12,width=768,context=1024,vocab=50257"},
        {"gpt2-124m", 65, "gpt:layers=12,heads=12,width=768,context=1024,vocab=50257"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls__spec spec, again;
        assert_ok(ls__spec_parse(&spec, rows[i].spec, rows[i].default_vocab));
        assert_string_equal(spec.text, rows[i].text);
        assert_ok(ls__spec_parse(&again, spec.text, 0));
        assert_string_equal(again.text, spec.text);
    }
}

static void bad_specs_name_the_part(void **state) {
    (void)state;
#define GPT "gpt:layers=2,heads=2,width=8,context=4"
    static const struct {
        const char *spec, *part;
    } rows[] = {
        {"", "unknown; known are mlp:"},
        {"resnet", "model \"resnet\": unknown; known are mlp:IN,...,OUT, cnn, resnet18, gpt:"},
        {"resnet18:depth=2", "unknown key \"depth\"; known are channels, side, classes, width"},
        {"resnet18:side=33", "side is \"33\", want a whole number from 1 to 32"},
        {"resnet18:side=27", "side 27 is odd, want an even number"},
        {"resnet18:channels=0", "channels is \"0\""},
        {"mlp", "0 widths, want at least 2"},
        {"mlp:", "width 1 is \"\", want a whole number from 1"},
        {"mlp:784", "1 widths, want at least 2"},
        {"mlp:784,0,10", "width 2 is \"0\""},
        {"mlp:784,-1,10", "width 2 is \"-1\""},
        {"mlp:784,10,", "width 3 is \"\""},
        {"mlp:784,1e3,10", "width 2 is \"1e3\""},
        {"mlp: 784,10", "width 1 is \" 784\""},
        {"mlp:784,16777217", "want a whole number from 1 to 16777216"},
        {"mlp:99999999999999999999999,10", "width 1 is \"99999999999999999999999\""},
        {"mlp:1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
         "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1",
         "more than 64 widths"},
        {"cnn:", "\"\" is not of the form key=value"},
        {"cnn:depth=3", "unknown key \"depth\"; known are dropout"},
        {"cnn:dropout=1", "dropout is \"1\", want a decimal number from 0 to below 1"},
        {"cnn:dropout=-0.1", "dropout is \"-0.1\""},
        {"cnn:dropout=nan", "dropout is \"nan\""},
        {"cnn:norm=layer", "norm is \"layer\", want none, batch or sync"},
        {"resnet18:norm=none", "norm is \"none\", want batch or sync"},
        {"cnn:dropout=.", "dropout is \".\""},
        {"cnn:dropout=0.1.2", "dropout is \"0.1.2\""},
        {"cnn:dropout=0.0000000000000000000001", "dropout is"},
        {"cnn:dropout=0.9999999999", "dropout is"}, /* 1 as f32 */
        {"gpt", "layers is missing, want gpt:layers=,heads="},
        {"gpt:layers=2", "heads is missing"},
        {GPT, "vocab is missing"},
        {GPT ",vocab=", "vocab is \"\""},
        {GPT ",vocab=65,depth=1", "unknown key \"depth\"; known are layers, heads, width, context, "
                                  "vocab, dropout"},
        {GPT ",layers=2", "layers is given twice"},
        {GPT ",vocab", "\"vocab\" is not of the form key=value"},
        {GPT ",=3", "unknown key \"\""},
        {"gpt:layers=0,heads=2,width=8,context=4,vocab=3", "layers is \"0\""},
        {"gpt:layers=4097,heads=2,width=8,context=4,vocab=3", "from 1 to 4096"},
        {"gpt:layers=1,heads=3,width=8,context=4,vocab=3", "width 8 is not a multiple of heads 3"},
        {"gpt:layers=1,heads=16,width=8,context=4,vocab=3",
         "width 8 is not a multiple of heads 16"},
        {"gpt:layers=1,heads=1,width=18446744073709551617,context=4,vocab=3", "width is \"1844"},
        {"gpt2-124m:layers=3", "unknown"},
        {"GPT", "unknown"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls__spec spec;
        if (ls__spec_parse(&spec, rows[i].spec, 0) != LS_ERR_ARGUMENT)
            fail_msg("\"%s\" was not refused", rows[i].spec);
        assert_message(rows[i].part);
    }
    ls__spec spec;
    assert_int_equal(ls__spec_parse(&spec, NULL, 0), LS_ERR_ARGUMENT);
    assert_int_equal(ls__spec_parse(&spec, GPT, (size_t)1 << 25), LS_ERR_ARGUMENT);
    assert_message("the data's vocab 33554432 is above 16777216");
}

/* A long text is cut in the message, which stays readable to its end. */
static void long_specs_are_cut(void **state) {
    (void)state;
    char text[5000];
    ls__spec spec;
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_int_equal(ls__spec_parse(&spec, text, 0), LS_ERR_ARGUMENT);
    assert_message("known are mlp:IN,...,OUT, cnn, resnet18, gpt:layers=");
    assert_message("gpt2-124m");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_specs_are_filled_in),
        cmocka_unit_test(bad_specs_name_the_part),
        cmocka_unit_test(long_specs_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
