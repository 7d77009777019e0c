/* lockstep doctor: what was found at build time and on this machine, and what to do where something is
 * missing. */
#include "cli/doctor.h"

#include "base/json.h"
#include "cli/commands.h"
#include "cli/options.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void add(ls__findings *findings, ls__finding_state state, const char *advice,
                const char *name, const char *format, va_list args) {
    if (findings->count == sizeof findings->rows / sizeof findings->rows[0])
        return;
    ls__finding *row = &findings->rows[findings->count++];
    *row =
        (ls__finding){.section = findings->section, .name = name, .state = state, .advice = advice};
    vsnprintf(row->value, sizeof row->value, format, args);
}

void ls__findings_add(ls__findings *findings, const char *name, const char *format, ...) {
    va_list args;
    va_start(args, format);
    add(findings, LS__FINDING_OK, NULL, name, format, args);
    va_end(args);
}

void ls__findings_fault(ls__findings *findings, ls__finding_state state, const char *advice,
                        const char *name, const char *format, ...) {
    va_list args;
    va_start(args, format);
    add(findings, state, advice, name, format, args);
    va_end(args);
}

static const char *const state_names[] = {"ok", "missing", "broken"};

static void print_text(const ls__findings *findings, size_t broken, size_t missing) {
    const char *section = "";
    for (size_t i = 0; i < findings->count; i++) {
        const ls__finding *row = &findings->rows[i];
        if (strcmp(section, row->section) != 0)
            printf("%s%s\n", i ? "\n" : "", row->section);
        section = row->section;
        printf("  %-18s ", row->name);
        ls__print_wrapped(stdout, row->value, 21, 21);
        if (row->advice) {
            printf("%*s%s: ", 21, "", row->state == LS__FINDING_BROKEN ? "BROKEN" : "optional");
            ls__print_wrapped(stdout, row->advice, 31, 21);
        }
    }
    if (broken)
        printf("\n%zu of the required things %s not work: see BROKEN above.\n", broken,
               broken == 1 ? "does" : "do");
    else if (missing)
        printf("\nEverything required works; %zu optional %s missing.\n", missing,
               missing == 1 ? "thing is" : "things are");
    else
        printf("\nEverything works.\n");
}

static int print_json(const ls__findings *findings, size_t broken) {
    json_t *object = json_object(), *rows = json_array();
    for (size_t i = 0; i < findings->count; i++) {
        const ls__finding *row = &findings->rows[i];
        json_t *entry = json_object();
        json_object_set_new(entry, "section", json_string(row->section));
        json_object_set_new(entry, "name", json_string(row->name));
        json_object_set_new(entry, "state", json_string(state_names[row->state]));
        json_object_set_new(entry, "value", json_string(row->value));
        json_object_set_new(entry, "advice", row->advice ? json_string(row->advice) : json_null());
        json_array_append_new(rows, entry);
    }
    json_object_set_new(object, "ok", json_boolean(broken == 0));
    json_object_set_new(object, "findings", rows);
    return ls__cli_exit_code(ls__json_write_line(stdout, "stdout", object));
}

typedef struct doctor_settings {
    int format; /* 0 text, 1 json */
} doctor_settings;

static const char *const examples[] = {
    "lockstep doctor",
    "lockstep doctor --format json",
    NULL,
};

static const ls__option options[] = {
    LS__OPTION_ROW_FORMAT(doctor_settings, "one object on one line"),
};

static const ls__command command = {
    .name = "doctor",
    .usage = "lockstep doctor [--format text|json]",
    .summary = "Prints what this build holds and what this machine offers: libraries, cores, "
               "instruction sets, transports (each is tried), data sets and limits. Ends with exit "
               "code 1 when something required does not work, and says what to do.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .examples = examples,
};

int ls__cli_doctor(int argc, char **argv) {
    doctor_settings settings = {0};
    int first, code;
    if (!ls__options_parse(&command, argc, argv, &settings, &first, &code))
        return code;
    ls__findings findings = {0};
    ls__doctor_software(&findings);
    ls__doctor_machine(&findings);
    ls__doctor_transports(&findings);
    ls__doctor_limits(&findings);
    size_t broken = 0, missing = 0;
    for (size_t i = 0; i < findings.count; i++) {
        broken += findings.rows[i].state == LS__FINDING_BROKEN;
        missing += findings.rows[i].state == LS__FINDING_MISSING;
    }
    code = LS__EXIT_OK;
    if (settings.format == 1)
        code = print_json(&findings, broken);
    else
        print_text(&findings, broken, missing);
    return broken ? LS__EXIT_FAILURE : code;
}
