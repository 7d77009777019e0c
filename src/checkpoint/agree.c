/* How ranks that save or load together learn of each other's failures. */
#include "checkpoint/checkpointer.h"

#include "base/error.h"
#include <stdio.h>
#include <string.h>

static void speak(ls__word *word, ls_status status, const char *text) {
    *word = (ls__word){.status = (int32_t)status};
    snprintf(word->text, sizeof word->text, "%s", status == LS_OK ? text : ls_error_text());
}

ls_status ls__checkpoint_agree(ls_checkpointer *c, ls_status status) {
    ls__word mine;
    speak(&mine, status, "");
    LS_TRY(ls_all_gather(c->group, &mine, c->words, sizeof mine, LS_U8));
    for (int r = 0; r < c->ranks; r++)
        if (c->words[r].status != LS_OK)
            return ls__fail((ls_status)c->words[r].status, "rank %d: %s", r, c->words[r].text);
    return LS_OK;
}

ls_status ls__checkpoint_follow(ls_group *group, ls_status status, char *text, size_t size) {
    ls__word word = {0};
    if (ls_group_rank(group) == 0)
        speak(&word, status, text);
    LS_TRY(ls_broadcast(group, &word, sizeof word, LS_U8, 0));
    if (word.status != LS_OK)
        return ls__fail((ls_status)word.status, "%s", word.text);
    snprintf(text, size, "%s", word.text);
    return LS_OK;
}
