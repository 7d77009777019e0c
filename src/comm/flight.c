#include "comm/flight.h"

#include "base/clock.h"
#include <stdio.h>
#include <string.h>

/* The words of an entry. READY and OUTCOME count once END is set, FROM and FROM_SEQUENCE for sendrecv. */
enum {
    NUMBER,
    GROUP,
    SEQUENCE,
    COUNT,
    QUEUED,
    BEGIN,
    READY,
    END,
    WHAT,
    OUTCOME,
    FROM,
    FROM_SEQUENCE
};

static const uint64_t CLAIMED = UINT64_MAX; /* as NUMBER */

/* --- writing -------------------------------------------------------------------------------------- */

static _Atomic uint64_t *words_of(ls__flight *flight, uint64_t number) {
    return flight->entry[(number - 1) % LS__FLIGHT_ENTRIES].word;
}

/* In order: whoever sees one of an entry's words sees that its number was taken away before. (No fences, which
 * the thread sanitizer does not know.) */
static void put(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_release);
}

static uint64_t get(const _Atomic uint64_t *word) {
    return atomic_load_explicit(word, memory_order_acquire);
}

/* The world's operations run one after the other: while there is no other group, nobody else writes. */
static bool is_shared(const ls__flight *flight) {
    return atomic_load_explicit(&flight->shared, memory_order_relaxed);
}

static uint64_t next_number(ls__flight *flight) {
    if (is_shared(flight))
        return atomic_fetch_add_explicit(&flight->begun, 1, memory_order_relaxed) + 1;
    uint64_t number = atomic_load_explicit(&flight->begun, memory_order_relaxed) + 1;
    atomic_store_explicit(&flight->begun, number, memory_order_relaxed);
    return number;
}

/* A reader that comes from now on sees no entry. False: another thread is writing it, or has; then this operation
 * goes without. */
static bool claim(const ls__flight *flight, _Atomic uint64_t *word, uint64_t seen) {
    if (is_shared(flight))
        return seen != CLAIMED && atomic_compare_exchange_strong(&word[NUMBER], &seen, CLAIMED);
    put(&word[NUMBER], CLAIMED);
    return true;
}

uint64_t ls__flight_begin(ls__flight *flight, const ls__operation *operation) {
    if (!flight)
        return 0;
    const ls__header *header = &operation->header;
    const int root = ls__label_rank(operation->label, operation->root);
    uint64_t number = next_number(flight);
    _Atomic uint64_t *word = words_of(flight, number);
    if (!claim(flight, word, get(&word[NUMBER])))
        return 0;
    put(&word[GROUP], header->group);
    put(&word[SEQUENCE], header->sequence);
    put(&word[COUNT], header->count);
    put(&word[QUEUED], operation->times.queued_ns);
    put(&word[BEGIN], operation->times.begin_ns);
    put(&word[END], 0);
    put(&word[WHAT], (uint64_t)header->kind | (uint64_t)header->dtype << 16 |
                         (uint64_t)header->op << 24 | (uint64_t)(uint32_t)root << 32);
    if (header->kind == LS__SENDRECV) {
        put(&word[FROM], (uint32_t)ls__label_rank(operation->label, operation->from));
        put(&word[FROM_SEQUENCE], operation->recv_sequence);
    }
    put(&word[NUMBER], number);
    return number;
}

void ls__flight_end(ls__flight *flight, uint64_t number, const ls__operation *operation,
                    ls_status status) {
    if (!flight || number == 0)
        return;
    _Atomic uint64_t *word = words_of(flight, number);
    if (get(&word[NUMBER]) != number || (is_shared(flight) && !claim(flight, word, number)))
        return; /* so many operations of other groups began meanwhile that its place was taken */
    put(&word[READY], operation->times.ready_ns);
    const int last = ls__label_rank(operation->label, operation->times.last_rank);
    put(&word[OUTCOME], (uint32_t)status | (uint64_t)(uint32_t)last << 32);
    put(&word[END], operation->times.end_ns);
    put(&word[NUMBER], number);
}

void ls__flight_name_group(ls__flight *flight, uint64_t id, int size, const char *name) {
    if (!flight)
        return;
    if (id != 1)
        atomic_store(&flight->shared, 1);
    for (int i = 0; i < LS__FLIGHT_GROUPS; i++) {
        ls__flight_group *group = &flight->group[i];
        uint32_t none = 0;
        if (!atomic_compare_exchange_strong(&group->size, &none, (uint32_t)size))
            continue;
        snprintf(group->name, sizeof group->name, "%s", name);
        atomic_store(&group->id, id);
        return;
    }
}

void ls__flight_forget_group(ls__flight *flight, uint64_t id) {
    for (int i = 0; flight && i < LS__FLIGHT_GROUPS; i++) {
        ls__flight_group *group = &flight->group[i];
        if (atomic_compare_exchange_strong(&group->id, &(uint64_t){id}, 0))
            atomic_store(&group->size, 0);
    }
}

bool ls__flight_fail(ls__flight *flight, const char *text) {
    uint32_t none = 0;
    if (!flight || !atomic_compare_exchange_strong(&flight->failed, &none, 1))
        return false;
    snprintf(flight->failure, sizeof flight->failure, "%s", text);
    atomic_store(&flight->failed_ns, ls__now_ns());
    atomic_store(&flight->failed, 2);
    return true;
}

/* --- reading -------------------------------------------------------------------------------------- */

void ls__flight_copy_text(char *to, size_t bytes, const char *from, size_t most) {
    size_t n = 0;
    for (; n + 1 < bytes && n < most && from[n]; n++) {
        unsigned char c = (unsigned char)from[n];
        to[n] = c < 0x20 || c == 0x7f ? ' ' : (char)c;
    }
    to[n] = '\0';
}

static void decode(const uint64_t *word, ls__flight_entry *entry) {
    *entry = (ls__flight_entry){
        .number = word[NUMBER],
        .group = word[GROUP],
        .sequence = word[SEQUENCE],
        .count = word[COUNT],
        .queued_ns = word[QUEUED],
        .begin_ns = word[BEGIN],
        .end_ns = word[END],
        .kind = word[WHAT] & 0xffff,
        .dtype = word[WHAT] >> 16 & 0xff,
        .op = word[WHAT] >> 24 & 0xff,
        .root = (int32_t)(word[WHAT] >> 32),
        .last_rank = -1,
    };
    if (entry->kind == LS__SENDRECV) {
        entry->from = (int32_t)word[FROM];
        entry->recv_sequence = word[FROM_SEQUENCE];
    }
    if (!entry->end_ns)
        return;
    entry->ready_ns = word[READY];
    entry->status = (int32_t)(word[OUTCOME] & 0xffffffff);
    entry->last_rank = (int32_t)(word[OUTCOME] >> 32);
}

/* False where there is no entry, or it is being replaced all the time. */
static bool read_entry(const _Atomic uint64_t *word, ls__flight_entry *entry) {
    uint64_t value[LS__FLIGHT_WORDS];
    for (int attempt = 0; attempt < 3; attempt++) {
        value[NUMBER] = atomic_load_explicit(&word[NUMBER], memory_order_acquire);
        value[END] = atomic_load_explicit(&word[END], memory_order_acquire);
        for (int i = NUMBER + 1; i < LS__FLIGHT_WORDS; i++) {
            if (i != END)
                value[i] = atomic_load_explicit(&word[i], memory_order_acquire);
        }
        if (value[NUMBER] && value[NUMBER] != CLAIMED &&
            atomic_load_explicit(&word[NUMBER], memory_order_relaxed) == value[NUMBER]) {
            decode(value, entry);
            return true;
        }
    }
    return false;
}

static void read_entries(const ls__flight *flight, ls__flight_record *record) {
    record->entry_count = 0;
    for (int i = 0; i < LS__FLIGHT_ENTRIES; i++) {
        ls__flight_entry entry;
        if (!read_entry(flight->entry[i].word, &entry))
            continue;
        int at = record->entry_count++;
        for (; at > 0 && record->entry[at - 1].number > entry.number; at--)
            record->entry[at] = record->entry[at - 1];
        record->entry[at] = entry;
    }
}

static void read_groups(const ls__flight *flight, ls__flight_record *record) {
    record->group_count = 0;
    for (int i = 0; i < LS__FLIGHT_GROUPS; i++) {
        const ls__flight_group *group = &flight->group[i];
        uint64_t id = atomic_load(&group->id);
        uint32_t size = atomic_load(&group->size);
        if (!id || size > INT32_MAX)
            continue;
        int at = record->group_count++;
        record->group[at].id = id;
        record->group[at].size = (int)size;
        ls__flight_copy_text(record->group[at].name, LS__FLIGHT_NAME_BYTES, group->name,
                             LS__FLIGHT_NAME_BYTES);
    }
}

void ls__flight_read(const ls__flight *flight, ls__flight_record *record) {
    record->failed_ns = 0;
    record->failure[0] = '\0';
    if (atomic_load(&flight->failed) == 2) {
        record->failed_ns = atomic_load(&flight->failed_ns);
        ls__flight_copy_text(record->failure, sizeof record->failure, flight->failure,
                             sizeof flight->failure);
    }
    read_groups(flight, record);
    read_entries(flight, record);
}
