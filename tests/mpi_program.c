/* A program with an MPI of its own, compiled by tests/test_comm_mpi.sh with each mpicc: jobs from
 * communicators, and what a lower level of threads allows. `mpi_program split|funneled`. */
#include <lockstep/group.h>
#include <lockstep/mpi.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s is false; last error: %s\n", __FILE__, __LINE__,            \
                    #condition, ls_error_text());                                                  \
            exit(99);                                                                              \
        }                                                                                          \
    } while (0)

/* Two jobs in one process: all ranks, and the ranks of one parity in reverse order. */
static void split(int rank, int size) {
    MPI_Comm world = MPI_COMM_WORLD, part;
    ls_job *all = NULL, *half = NULL;
    int64_t value = rank, sum = -1, want = 0;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &part);
    CHECK(ls_job_from_mpi(&all, &world, NULL) == LS_OK);
    CHECK(ls_job_from_mpi(&half, &part, NULL) == LS_OK);
    CHECK(ls_job_rank(all) == rank && ls_job_world_size(all) == size);
    CHECK(ls_job_world_size(half) == (size + 1 - rank % 2) / 2);
    CHECK(ls_job_rank(half) == ls_job_world_size(half) - 1 - rank / 2);
    for (int r = rank % 2; r < size; r += 2)
        want += r;
    CHECK(ls_all_reduce(ls_job_world(half), &value, &sum, 1, LS_I64, LS_SUM) == LS_OK);
    CHECK(sum == want);
    ls_work *work;
    CHECK(ls_all_reduce_start(ls_job_world(all), &value, &sum, 1, LS_I64, LS_SUM, &work) == LS_OK);
    /* the program's own messages go on meanwhile: MPI takes several threads */
    int mine = rank, greatest = -1;
    MPI_Allreduce(&mine, &greatest, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    CHECK(greatest == size - 1);
    CHECK(ls_work_wait(work, NULL) == LS_OK && sum == (int64_t)size * (size - 1) / 2);
    ls_job_finish(half);
    ls_job_finish(all);
    MPI_Barrier(part); /* the communicators are still the program's */
    MPI_Comm_free(&part);
}

static void funneled(int rank, int size) {
    MPI_Comm world = MPI_COMM_WORLD;
    ls_job *job = NULL;
    ls_work *work = NULL;
    float value = 1, sum = 0;
    CHECK(ls_job_from_mpi(&job, &world, NULL) == LS_OK && ls_job_rank(job) == rank);
    CHECK(ls_all_reduce(ls_job_world(job), &value, &sum, 1, LS_F32, LS_SUM) == LS_OK);
    CHECK(sum == (float)size);
    MPI_Barrier(MPI_COMM_WORLD);
    ls_status status =
        ls_all_reduce_start(ls_job_world(job), &value, &sum, 1, LS_F32, LS_SUM, &work);
    while (status == LS_OK && !ls_work_done(work)) /* so that the group's own thread runs it */
        ;
    status = ls_work_wait(work, NULL);
    CHECK(status == LS_ERR_UNSUPPORTED && strstr(ls_error_text(), "MPI_THREAD_SERIALIZED"));
    ls_job_finish(job);
}

int main(int count, char **words) {
    int rank, size, level;
    const int is_funneled = count > 1 && strcmp(words[1], "funneled") == 0;
    MPI_Init_thread(&count, &words, is_funneled ? MPI_THREAD_FUNNELED : MPI_THREAD_MULTIPLE,
                    &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (is_funneled)
        funneled(rank, size);
    else
        split(rank, size);
    MPI_Finalize();
    return 0;
}
