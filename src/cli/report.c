/* lockstep report: what the ranks of a failed job were doing, in words. */
#include "cli/commands.h"
#include "cli/options.h"
#include "launch/diagnosis.h"
#include <lockstep/status.h>
#include <stdio.h>
#include <stdlib.h>

static void complain(void *context, const char *line) {
    (void)context;
    fprintf(stderr, "lockstep report: %s\n", line);
}

static void print_rank(const ls__diagnosis *d, int r) {
    const ls__flight_record *record = &d->record[r];
    printf("rank %d", r);
    if (record->pid)
        printf(" (host %s, pid %lld)", record->host, (long long)record->pid);
    printf(" %s\n", d->line[r]);
}

static void print_text(const ls__diagnosis *d) {
    if (d->first >= 0)
        printf("first error, on rank %d: %s\n\n", d->first, d->record[d->first].failure);
    for (int i = 0; i < d->stall_count; i++)
        printf("%s\n", d->stall[i].text);
    if (d->stall_count == 0)
        printf("no rank was in an operation that had not ended\n");
    putchar('\n');
    for (int r = 0; r < d->ranks; r++)
        print_rank(d, r);
}

static int report(const char *folder, bool json) {
    ls__flight_record *record;
    ls__diagnosis *d;
    int ranks;
    ls_status status = ls__flight_load(folder, &record, &ranks, complain, NULL);
    if (status != LS_OK)
        return ls__cli_report("lockstep report", status);
    status = ls__diagnosis_make(&d, record, ranks);
    if (status == LS_OK && json)
        status = ls__json_write_line(stdout, "stdout", ls__diagnosis_json(d));
    else if (status == LS_OK)
        print_text(d);
    ls__diagnosis_free(d);
    free(record);
    return status == LS_OK ? LS__EXIT_OK : ls__cli_report("lockstep report", status);
}

typedef struct report_settings {
    const char *folder;
    int format; /* 0 text, 1 json */
} report_settings;

static const char *const examples[] = {
    "lockstep run -n 4 --flight flight ./trainer",
    "lockstep report --flight flight",
    NULL,
};

static const ls__option options[] = {
    {.name = "flight",
     .kind = LS__OPTION_TEXT,
     .placeholder = "DIR",
     .at = offsetof(report_settings, folder),
     .help = "the flight records, DIR/flight-rank-N.json: of lockstep run --flight, or of ranks "
             "that were started with LOCKSTEP_FLIGHT=DIR"},
    LS__OPTION_ROW_FORMAT(report_settings, "one object on one line"),
};

static const ls__command command = {
    .name = "report",
    .usage = "lockstep report --flight DIR [--format text|json]",
    .summary = "Says who was where when a job failed: which ranks had not arrived at which "
               "operation, what they were doing instead, and who waited for them. The records "
               "of several machines can be put into one folder.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .examples = examples,
};

int ls__cli_report_command(int argc, char **argv) {
    report_settings settings = {0};
    int first, code;
    if (!ls__options_parse(&command, argc, argv, &settings, &first, &code))
        return code;
    if (first < argc)
        return ls__usage_error(&command, "unexpected argument '%.60s'", argv[first]);
    if (!settings.folder)
        return ls__usage_error(&command, "say where the records are: --flight DIR");
    return report(settings.folder, settings.format == 1);
}
