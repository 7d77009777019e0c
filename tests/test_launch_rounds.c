/* The state machine of a job on several machines: each death, on each side, in each phase. Node 0 is where the
 * launchers meet. */
#include "launch/rounds.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { JOIN = 1000, SETTLE = 50 };

/* One machine at a time, with a clock of its own. */
static ls__rounds rounds;
static uint64_t now;

static void open_rounds(int min, int max, int restarts) {
    now = 100;
    ls__rounds_open(&rounds, min, max, restarts, JOIN, SETTLE, now);
    ls__rounds_join(&rounds, 0, -1, now);
}

/* That a round is over stands before what follows, and only in its one place. */
static ls__order next(void) {
    int members = rounds.members;
    ls__phase before = rounds.phase;
    ls__order order = ls__rounds_next(&rounds, now);
    if (order != LS__ORDER_AGAIN)
        return order;
    assert_int_equal(before, LS__STOPPING);
    assert_int_equal(rounds.phase, LS__GATHERING);
    assert_int_equal(rounds.members, members);
    order = ls__rounds_next(&rounds, now);
    assert_true(order != LS__ORDER_AGAIN);
    return order;
}

static void wants(ls__order order) {
    assert_int_equal(next(), order);
    if (order != LS__ORDER_NONE)
        assert_int_equal(next(), LS__ORDER_NONE);
}

static void is_over(ls__why why) {
    wants(LS__ORDER_OVER);
    assert_int_equal(rounds.phase, LS__OVER);
    assert_int_equal(rounds.why, why);
}

/* `nodes` of them are running. */
static void start(int min, int max, int restarts, int nodes) {
    open_rounds(min, max, restarts);
    for (int i = 1; i < nodes; i++)
        ls__rounds_join(&rounds, i, -1, now);
    now += SETTLE;
    wants(LS__ORDER_START);
    assert_int_equal(rounds.members, nodes);
}

static void end_members(void) {
    for (int i = 0; i < rounds.members; i++)
        ls__rounds_ended(&rounds, rounds.member[i], false);
}

static void members_are(const char *text) {
    char list[64];
    size_t n = 0;
    for (int i = 0; i < rounds.members; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%d ", rounds.member[i]);
    assert_string_equal(list, text);
}

/* --- gathering -------------------------------------------------------------------------------------- */

static void test_one_node_needs_nobody(void **state) {
    (void)state;
    start(1, 1, 0, 1);
    ls__rounds_ended(&rounds, 0, false);
    is_over(LS__WHY_DONE);
}

static void test_waits_for_all(void **state) {
    (void)state;
    open_rounds(3, 3, 0);
    wants(LS__ORDER_NONE);
    ls__rounds_join(&rounds, 1, -1, now);
    now += SETTLE * 2;
    wants(LS__ORDER_NONE);
    ls__rounds_join(&rounds, 2, -1, now);
    wants(LS__ORDER_START);
}

static void test_too_few_come(void **state) {
    (void)state;
    open_rounds(2, 3, 5);
    now += JOIN - 1;
    wants(LS__ORDER_NONE);
    now++;
    is_over(LS__WHY_FEW);
}

static void test_waits_a_moment_for_more_than_enough(void **state) {
    (void)state;
    open_rounds(2, 3, 0);
    ls__rounds_join(&rounds, 1, -1, now);
    wants(LS__ORDER_NONE);
    now += SETTLE;
    wants(LS__ORDER_START);
    members_are("0 1 ");
    /* and the third is there before that moment is over: at once */
    open_rounds(2, 3, 0);
    ls__rounds_join(&rounds, 1, -1, now);
    ls__rounds_join(&rounds, 2, -1, now);
    wants(LS__ORDER_START);
}

static void test_a_node_dies_while_others_are_awaited(void **state) {
    (void)state;
    open_rounds(2, 3, 0);
    ls__rounds_join(&rounds, 1, -1, now);
    ls__rounds_gone(&rounds, 1);
    now += SETTLE;
    wants(LS__ORDER_NONE); /* what it had begun is not counted for it */
    ls__rounds_join(&rounds, 1, -1, now);
    wants(LS__ORDER_NONE);
    now += SETTLE;
    wants(LS__ORDER_START);
}

static void test_a_signal_while_gathering(void **state) {
    (void)state;
    open_rounds(2, 2, 3);
    ls__rounds_signal(&rounds, SIGINT);
    is_over(LS__WHY_SIGNAL);
}

static void test_numbers_follow_the_wish_then_the_arrival(void **state) {
    (void)state;
    open_rounds(5, 5, 0);
    ls__rounds_join(&rounds, 1, -1, now);
    ls__rounds_join(&rounds, 2, 3, now);
    ls__rounds_join(&rounds, 3, 1, now);
    ls__rounds_join(&rounds, 4, -1, now);
    wants(LS__ORDER_START);
    members_are("0 3 2 1 4 ");
}

static void test_there_is_no_room_beyond_max(void **state) {
    (void)state;
    open_rounds(1, 2, 0);
    assert_true(ls__rounds_has_room(&rounds));
    start(1, 2, 0, 2);
    assert_false(ls__rounds_has_room(&rounds));
    ls__rounds_leave(&rounds, 1); /* who leaves needs its place no more */
    assert_true(ls__rounds_has_room(&rounds));
    start(1, 2, 0, 2);
    ls__rounds_gone(&rounds, 1);
    assert_true(ls__rounds_has_room(&rounds));
    ls__rounds_join(&rounds, 2, -1, now);
    assert_false(ls__rounds_has_room(&rounds));
    wants(LS__ORDER_END);
    ls__rounds_ended(&rounds, 0, false);
    wants(LS__ORDER_START);
    members_are("0 2 ");
}

/* --- running ---------------------------------------------------------------------------------------- */

static void test_all_end_well(void **state) {
    (void)state;
    start(3, 3, 2, 3);
    ls__rounds_ended(&rounds, 1, false);
    ls__rounds_ended(&rounds, 0, false);
    wants(LS__ORDER_NONE);
    ls__rounds_ended(&rounds, 2, false);
    is_over(LS__WHY_DONE);
    ls__rounds_signal(&rounds, SIGTERM); /* too late */
    wants(LS__ORDER_NONE);
}

static void test_a_rank_fails(void **state) {
    (void)state;
    for (int who = 0; who < 3; who++) {
        start(3, 3, 0, 3);
        ls__rounds_failed(&rounds, who);
        wants(LS__ORDER_END);
        end_members();
        is_over(LS__WHY_FAILED);
    }
}

static void test_restarts_are_counted(void **state) {
    (void)state;
    start(2, 2, 2, 2);
    for (int i = 1; i <= 2; i++) {
        ls__rounds_failed(&rounds, i % 2);
        wants(LS__ORDER_END);
        end_members();
        wants(LS__ORDER_START);
        assert_int_equal(rounds.restarts, i);
        assert_int_equal(rounds.round, i + 1);
    }
    ls__rounds_failed(&rounds, 1);
    wants(LS__ORDER_END);
    end_members();
    is_over(LS__WHY_FAILED);
}

static void test_a_fixed_job_loses_a_node(void **state) {
    (void)state;
    start(2, 2, 0, 2);
    ls__rounds_gone(&rounds, 1);
    wants(LS__ORDER_END);
    ls__rounds_ended(&rounds, 0, false);
    is_over(LS__WHY_LOST);
    /* with a restart left it waits for the node to come back */
    start(2, 2, 1, 2);
    ls__rounds_gone(&rounds, 1);
    wants(LS__ORDER_END);
    ls__rounds_ended(&rounds, 0, false);
    wants(LS__ORDER_NONE);
    assert_int_equal(rounds.phase, LS__GATHERING);
    ls__rounds_join(&rounds, 1, -1, now);
    wants(LS__ORDER_START);
    assert_int_equal(rounds.restarts, 1);
    /* but not for ever */
    ls__rounds_gone(&rounds, 1);
    wants(LS__ORDER_END);
    ls__rounds_ended(&rounds, 0, false);
    is_over(LS__WHY_LOST);
}

static void test_an_elastic_job_loses_a_node_and_gets_it_back(void **state) {
    (void)state;
    start(2, 3, 0, 3);
    ls__rounds_gone(&rounds, 2);
    wants(LS__ORDER_END);
    ls__rounds_ended(&rounds, 0, false);
    wants(LS__ORDER_NONE);
    ls__rounds_ended(&rounds, 1, false);
    wants(LS__ORDER_START); /* at once: nobody is waited for */
    members_are("0 1 ");
    assert_int_equal(rounds.restarts, 0);
    ls__rounds_join(&rounds, 2, -1, now);
    wants(LS__ORDER_AGREE); /* ranks may finish their step */
    end_members();
    wants(LS__ORDER_START);
    members_are("0 1 2 ");
}

static void test_below_the_minimum_it_waits(void **state) {
    (void)state;
    start(2, 3, 0, 2);
    ls__rounds_gone(&rounds, 1);
    wants(LS__ORDER_END);
    ls__rounds_ended(&rounds, 0, false);
    wants(LS__ORDER_NONE);
    now += JOIN - 1;
    ls__rounds_join(&rounds, 7, -1, now);
    wants(LS__ORDER_START);
    members_are("0 7 ");
    ls__rounds_gone(&rounds, 7);
    wants(LS__ORDER_END);
    ls__rounds_ended(&rounds, 0, false);
    wants(LS__ORDER_NONE);
    now += JOIN;
    is_over(LS__WHY_FEW);
}

static void test_a_node_leaves(void **state) {
    (void)state;
    start(1, 2, 0, 2);
    ls__rounds_leave(&rounds, 1);
    wants(LS__ORDER_AGREE);
    end_members();
    wants(LS__ORDER_START);
    members_are("0 ");
    ls__rounds_gone(&rounds, 1);
    wants(LS__ORDER_NONE);
    /* a fixed job ends with it */
    start(2, 2, 3, 2);
    ls__rounds_leave(&rounds, 1);
    wants(LS__ORDER_AGREE);
    end_members();
    is_over(LS__WHY_SIGNAL);
}

static void test_a_node_is_gone_after_its_ranks_ended(void **state) {
    (void)state;
    start(2, 2, 0, 2);
    ls__rounds_ended(&rounds, 1, false);
    ls__rounds_gone(&rounds, 1);
    wants(LS__ORDER_NONE);
    ls__rounds_ended(&rounds, 0, false);
    is_over(LS__WHY_DONE);
}

static void test_a_signal_while_running(void **state) {
    (void)state;
    start(2, 3, 9, 3);
    ls__rounds_signal(&rounds, SIGTERM);
    wants(LS__ORDER_AGREE);
    end_members();
    is_over(LS__WHY_SIGNAL);
}

/* --- stopping --------------------------------------------------------------------------------------- */

static void test_a_death_hurries_an_agreed_stop(void **state) {
    (void)state;
    for (int how = 0; how < 2; how++) {
        start(2, 3, 0, 2);
        ls__rounds_join(&rounds, 2, -1, now);
        wants(LS__ORDER_AGREE);
        if (how)
            ls__rounds_gone(&rounds, 1);
        else
            ls__rounds_failed(&rounds, 1);
        wants(LS__ORDER_END);
        ls__rounds_ended(&rounds, 0, false);
        ls__rounds_ended(&rounds, 1, false);
        if (how) {
            wants(LS__ORDER_START);
            members_are("0 2 ");
        } else {
            is_over(LS__WHY_FAILED);
        }
    }
    start(2, 2, 5, 2);
    ls__rounds_signal(&rounds, SIGTERM);
    wants(LS__ORDER_AGREE);
    ls__rounds_failed(&rounds, 0);
    wants(LS__ORDER_END);
    end_members();
    is_over(LS__WHY_SIGNAL); /* a job that is told to stop does not start again */
}

static void test_the_newcomer_dies_before_it_is_in(void **state) {
    (void)state;
    start(2, 3, 0, 2);
    ls__rounds_join(&rounds, 2, -1, now);
    wants(LS__ORDER_AGREE);
    ls__rounds_gone(&rounds, 2);
    wants(LS__ORDER_NONE);
    end_members();
    wants(LS__ORDER_START);
    members_are("0 1 ");
}

static void test_all_but_one_die_while_stopping(void **state) {
    (void)state;
    start(1, 4, 0, 4);
    ls__rounds_gone(&rounds, 1);
    wants(LS__ORDER_END);
    ls__rounds_gone(&rounds, 2);
    ls__rounds_gone(&rounds, 3);
    wants(LS__ORDER_NONE);
    ls__rounds_ended(&rounds, 0, false);
    wants(LS__ORDER_START);
    members_are("0 ");
}

static void test_a_signal_while_stopping_for_a_restart(void **state) {
    (void)state;
    start(2, 2, 5, 2);
    ls__rounds_failed(&rounds, 1);
    wants(LS__ORDER_END);
    ls__rounds_signal(&rounds, SIGINT);
    wants(LS__ORDER_NONE);
    end_members();
    is_over(LS__WHY_SIGNAL);
    assert_int_equal(rounds.restarts, 0);
}

/* A node comes (or leaves) while the last ranks end by themselves: what is finished does not start again. */
static void test_a_newcomer_finds_the_job_done(void **state) {
    (void)state;
    for (int leaves = 0; leaves < 2; leaves++) {
        for (int cut = 0; cut < 2; cut++) {
            start(1, 3, 0, 2);
            ls__rounds_ended(&rounds, 0, true);
            if (leaves)
                ls__rounds_leave(&rounds, 1);
            else
                ls__rounds_join(&rounds, 2, -1, now);
            wants(LS__ORDER_AGREE);
            ls__rounds_ended(&rounds, 1, !cut);
            if (cut)
                wants(LS__ORDER_START);
            else
                is_over(LS__WHY_DONE);
        }
    }
    /* what one round left undone says nothing about the next one */
    ls__rounds_open(&rounds, 1, 3, 0, JOIN, SETTLE, now);
    start(1, 3, 0, 1);
    ls__rounds_join(&rounds, 1, -1, now);
    wants(LS__ORDER_AGREE);
    ls__rounds_ended(&rounds, 0, false);
    wants(LS__ORDER_START);
    ls__rounds_join(&rounds, 2, -1, now);
    wants(LS__ORDER_AGREE);
    ls__rounds_ended(&rounds, 0, true);
    ls__rounds_ended(&rounds, 1, true);
    is_over(LS__WHY_DONE);
}

static void test_who_does_not_end_is_late(void **state) {
    (void)state;
    start(2, 2, 0, 2);
    now += JOIN;
    assert_false(ls__rounds_is_late(&rounds, 1, 10, now)); /* nobody asked it to */
    ls__rounds_signal(&rounds, SIGTERM);
    wants(LS__ORDER_AGREE);
    ls__rounds_ended(&rounds, 0, false);
    now += 10;
    assert_false(ls__rounds_is_late(&rounds, 1, 10, now));
    now++;
    assert_true(ls__rounds_is_late(&rounds, 1, 10, now));
    assert_false(ls__rounds_is_late(&rounds, 0, 10, now));
    ls__rounds_gone(&rounds, 1);
    assert_int_equal(next(), LS__ORDER_END);
    is_over(LS__WHY_SIGNAL);
}

/* Whatever happens in whatever order: every order is answered by an end, and a job whose nodes all die is over. */
static void test_any_order_of_events(void **state) {
    (void)state;
    for (unsigned seed = 1; seed <= 3000; seed++) {
        srand(seed);
        int max = 1 + rand() % 4, min = 1 + rand() % max;
        open_rounds(min, max, rand() % 3);
        for (int step = 0; step < 200 && rounds.phase != LS__OVER; step++) {
            int node = rand() % 6;
            now += (uint64_t)(rand() % 30);
            switch (rand() % 8) {
            case 0:
            case 1:
            case 2:
                if (!rounds.node[node].present && ls__rounds_has_room(&rounds))
                    ls__rounds_join(&rounds, node, rand() % 3 - 1, now);
                break;
            case 3:
                if (node)
                    ls__rounds_gone(&rounds, node);
                break;
            case 4:
                ls__rounds_failed(&rounds, node);
                break;
            case 5:
                ls__rounds_ended(&rounds, node, false);
                break;
            case 6:
                if (node && rounds.node[node].present)
                    ls__rounds_leave(&rounds, node);
                break;
            default:
                if (rand() % 20 == 0)
                    ls__rounds_signal(&rounds, SIGTERM);
            }
            for (int orders = 0; next() != LS__ORDER_NONE; orders++)
                assert_true(orders < 4);
            if (rounds.phase == LS__RUNNING)
                assert_true(rounds.members <= max);
            assert_true(ls__rounds_count(&rounds) <= max);
            assert_true(rounds.restarts <= rounds.max_restarts);
        }
        for (int i = 1; i < 6; i++)
            ls__rounds_gone(&rounds, i);
        for (int i = 0; i < 20 && rounds.phase != LS__OVER; i++) {
            while (next() != LS__ORDER_NONE)
                continue;
            ls__rounds_ended(&rounds, 0, false);
            now += JOIN;
        }
        if (rounds.phase != LS__OVER)
            fail_msg("seed %u: in phase %d", seed, rounds.phase);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_node_needs_nobody),
        cmocka_unit_test(test_waits_for_all),
        cmocka_unit_test(test_too_few_come),
        cmocka_unit_test(test_waits_a_moment_for_more_than_enough),
        cmocka_unit_test(test_a_node_dies_while_others_are_awaited),
        cmocka_unit_test(test_a_signal_while_gathering),
        cmocka_unit_test(test_numbers_follow_the_wish_then_the_arrival),
        cmocka_unit_test(test_there_is_no_room_beyond_max),
        cmocka_unit_test(test_all_end_well),
        cmocka_unit_test(test_a_rank_fails),
        cmocka_unit_test(test_restarts_are_counted),
        cmocka_unit_test(test_a_fixed_job_loses_a_node),
        cmocka_unit_test(test_an_elastic_job_loses_a_node_and_gets_it_back),
        cmocka_unit_test(test_below_the_minimum_it_waits),
        cmocka_unit_test(test_a_node_leaves),
        cmocka_unit_test(test_a_node_is_gone_after_its_ranks_ended),
        cmocka_unit_test(test_a_signal_while_running),
        cmocka_unit_test(test_a_death_hurries_an_agreed_stop),
        cmocka_unit_test(test_the_newcomer_dies_before_it_is_in),
        cmocka_unit_test(test_all_but_one_die_while_stopping),
        cmocka_unit_test(test_a_signal_while_stopping_for_a_restart),
        cmocka_unit_test(test_a_newcomer_finds_the_job_done),
        cmocka_unit_test(test_who_does_not_end_is_late),
        cmocka_unit_test(test_any_order_of_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
