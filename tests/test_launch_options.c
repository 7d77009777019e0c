/* The option parser of the commands: what is accepted, and that every mistake is one line that names
 * the option, with exit code 2. The command's own sources are no part of the libraries: included. */
#include "cli/exit_code.c"
#include "cli/options.c"
#include "cli/options_help.c"
#include "cli/ranks.c"

#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct values {
    bool flag, given;
    const char *text;
    int64_t count, any, ranks;
    double rate;
    int choice;
} values;

/* Parses `arguments` (split at spaces) and returns the exit code, -1 for "go on"; what was printed on
 * stderr goes to `message`, *rest is the index of the first positional. */
static int parse(values *v, bool stop, const char *arguments, char *message, size_t bytes,
                 int *rest) {
    const ls__option options[] = {
        {.name = "flag", .letter = 'f', .kind = LS__OPTION_FLAG, .at = offsetof(values, flag)},
        {.name = "text", .placeholder = "T", .kind = LS__OPTION_TEXT, .at = offsetof(values, text)},
        {.name = "count",
         .letter = 'n',
         .placeholder = "N",
         .kind = LS__OPTION_INTEGER,
         .at = offsetof(values, count),
         .given = 1 + offsetof(values, given),
         .min = 1,
         .max = 100},
        {.name = "any",
         .placeholder = "N",
         .kind = LS__OPTION_INTEGER,
         .at = offsetof(values, any)},
        {.name = "rate",
         .placeholder = "X",
         .kind = LS__OPTION_REAL,
         .at = offsetof(values, rate),
         .low = 0,
         .high = 1},
        {.name = "ranks",
         .placeholder = "N",
         .kind = LS__OPTION_RANKS,
         .at = offsetof(values, ranks)},
        {.name = "pick",
         .kind = LS__OPTION_CHOICE,
         .choices = "one|two|three",
         .at = offsetof(values, choice)},
    };
    const ls__command command = {.name = "test",
                                 .options = options,
                                 .option_count = sizeof options / sizeof options[0],
                                 .stop_at_positional = stop};
    static char copy[500]; /* text options point into it */
    char *argv[40] = {"test"};
    int argc = 1, first = 0, code = -1;
    snprintf(copy, sizeof copy, "%s", arguments);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    FILE *capture = tmpfile();
    fflush(stderr);
    int saved = dup(STDERR_FILENO);
    dup2(fileno(capture), STDERR_FILENO);
    bool going_on = ls__options_parse(&command, argc, argv, v, &first, &code);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(capture);
    message[fread(message, 1, bytes - 1, capture)] = '\0';
    fclose(capture);
    if (rest)
        *rest = first;
    return going_on ? -1 : code;
}

static void refuses(const char *arguments, const char *wanted) {
    values v = {0};
    char message[1024];
    assert_int_equal(parse(&v, false, arguments, message, sizeof message, NULL), LS__EXIT_USAGE);
    if (!strstr(message, wanted))
        fail_msg("%s: message '%s' lacks '%s'", arguments, message, wanted);
    assert_non_null(strchr(message, '\n'));
    assert_string_equal(strchr(message, '\n'), "\n"); /* one line */
}

static void test_every_form_of_a_value(void **state) {
    (void)state;
    values v = {.choice = -1};
    char message[1024];
    int rest;
    int code = parse(&v, false, "--text=a=b --count 7 -f --rate=1e-3 --pick three --any=-5",
                     message, sizeof message, &rest);
    assert_int_equal(code, -1);
    assert_string_equal(message, "");
    assert_string_equal(v.text, "a=b");
    assert_int_equal(v.count, 7);
    assert_true(v.flag && v.given);
    assert_true(v.rate == 1e-3);
    assert_int_equal(v.choice, 2);
    assert_int_equal(v.any, -5);
    assert_int_equal(rest, 9);
    assert_int_equal(parse(&v, false, "-n12", message, sizeof message, NULL), -1);
    assert_int_equal(v.count, 12);
    assert_int_equal(parse(&v, false, "-n 13 --count 14", message, sizeof message, NULL), -1);
    assert_int_equal(v.count, 14); /* the last one counts */
    assert_int_equal(parse(&v, false, "--ranks 3", message, sizeof message, NULL), -1);
    assert_int_equal(v.ranks, 3);
    assert_int_equal(parse(&v, false, "--ranks auto", message, sizeof message, NULL), -1);
    assert_int_equal(v.ranks, ls__launch_cores());
}

static void test_absent_options_keep_their_default(void **state) {
    (void)state;
    values v = {.count = 3, .rate = 0.5, .text = "t"};
    char message[1024];
    assert_int_equal(parse(&v, false, "", message, sizeof message, NULL), -1);
    assert_true(v.count == 3 && v.rate == 0.5 && !v.flag && !v.given);
    assert_string_equal(v.text, "t");
}

static void test_where_options_end(void **state) {
    (void)state;
    values v = {0};
    char message[1024];
    int rest;
    assert_int_equal(parse(&v, true, "-n 2 program --flag", message, sizeof message, &rest), -1);
    assert_int_equal(rest, 3);
    assert_false(v.flag);
    assert_int_equal(parse(&v, true, "-n 2 -- --flag", message, sizeof message, &rest), -1);
    assert_int_equal(rest, 4);
    assert_false(v.flag);
    assert_int_equal(parse(&v, true, "- x", message, sizeof message, &rest), -1);
    assert_int_equal(rest, 1);
    refuses("-n 2 program", "unexpected argument 'program'");
    refuses("-n 2 -- program", "unexpected argument 'program'");
}

static void test_mistakes_are_named(void **state) {
    (void)state;
    refuses("--cuont 3", "lockstep test: unknown option --cuont; did you mean --count?");
    refuses("--cuont=3", "--cuont; did you mean --count?");
    refuses("--completely-different",
            "unknown option --completely-different (lockstep test --help");
    refuses("--coun 3",
            "did you mean --count?"); /* no abbreviations: they break when options come */
    refuses("-x", "unknown option -x");
    refuses("--count", "--count needs a value (N)");
    refuses("--pick", "--pick needs a value (one|two|three)");
    refuses("--text=", "--text: '' is empty");
    refuses("--flag=yes", "--flag takes no value");
    refuses("--count 0", "--count: '0' is out of range, want 1 to 100");
    refuses("--count 101", "is out of range");
    refuses("-n 99999999999999999999", "-n: '99999999999999999999' is out of range");
    refuses("--any 99999999999999999999", "is out of range");
    refuses("--count 5x", "'5x' is no whole number");
    refuses("--count 5.5", "is no whole number");
    refuses("--count=", "is no whole number");
    refuses("--rate nan", "is no finite number");
    refuses("--rate inf", "is no finite number");
    refuses("--rate 1e999", "is no finite number");
    refuses("--rate 0.1.2", "is no finite number");
    refuses("--rate -0.1", "is out of range, want 0 to 1");
    refuses("--pick on", "'on' is none of one|two|three");
    refuses("--ranks 0", "--ranks: '0' is out of range, want 1 to 4096 or auto");
    refuses("--ranks=4097", "'4097' is out of range");
    refuses("--ranks autos", "'autos' is no number of ranks, want 1 to 4096 or auto");
    refuses("--pick one|two", "is none of one|two|three");
    refuses("--unknown\nline", "unknown option --unknown\\x0aline"); /* still one line */
}

static void test_long_words_are_cut(void **state) {
    (void)state;
    char arguments[400] = "--";
    memset(arguments + 2, 'x', 390);
    refuses(arguments, "unknown option --xxx");
    memcpy(arguments, "--count ", 8);
    refuses(arguments, "is no whole number");
}

static void test_number_of_ranks(void **state) {
    (void)state;
    int64_t ranks = 0;
    const char *why = NULL;
    assert_true(ls__ranks_parse("4096", &ranks, &why));
    assert_int_equal(ranks, 4096);
    assert_true(ls__ranks_parse("auto", &ranks, &why));
    assert_in_range(ranks, 1, 4096);
    const char *const wrong[] = {"0", "-1", "4097", "x", "", "2x", " 2", "1e3"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(ls__ranks_parse(wrong[i], &ranks, &why));
}

static void test_exit_codes_of_statuses(void **state) {
    (void)state;
    assert_int_equal(ls__cli_exit_code(LS_OK), 0);
    assert_int_equal(ls__cli_exit_code(LS_ERR_SYSTEM), 1);
    assert_int_equal(ls__cli_exit_code(LS_ERR_ARGUMENT), 2);
    assert_int_equal(ls__cli_exit_code(LS_ERR_FORMAT), 3);
    assert_int_equal(ls__cli_exit_code(LS_ERR_PEER), 4);
    assert_int_equal(ls__cli_exit_code(LS_ERR_MISMATCH), 4);
}

static void test_help_stays_within_the_page(void **state) {
    (void)state;
    const ls__option options[] = {
        {.name = "a-rather-long-option-name",
         .placeholder = "PLACEHOLDER",
         .kind = LS__OPTION_INTEGER,
         .fallback = "7",
         .help = "a text that is so long that it has to go on in the next line, where it stands "
                 "below its own beginning, and then in one more"},
        {.name = "hidden", .placeholder = "N", .kind = LS__OPTION_INTEGER},
    };
    const ls__command command = {.name = "test",
                                 .usage = "lockstep test",
                                 .summary =
                                     "Words words words words words words words words words words "
                                     "words words words words words words words words words.",
                                 .options = options,
                                 .option_count = 2};
    FILE *file = tmpfile();
    ls__options_help(&command, file);
    rewind(file);
    char line[400];
    bool fallback = false;
    while (fgets(line, sizeof line, file)) {
        assert_true(strlen(line) <= WIDTH + 1);
        assert_null(strstr(line, "hidden"));
        fallback |= strstr(line, "[7]") != NULL;
    }
    assert_true(fallback);
    fclose(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_form_of_a_value),
        cmocka_unit_test(test_absent_options_keep_their_default),
        cmocka_unit_test(test_where_options_end),
        cmocka_unit_test(test_mistakes_are_named),
        cmocka_unit_test(test_long_words_are_cut),
        cmocka_unit_test(test_number_of_ranks),
        cmocka_unit_test(test_exit_codes_of_statuses),
        cmocka_unit_test(test_help_stays_within_the_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
