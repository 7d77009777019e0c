/* MPI_Allreduce of f32, sum, measured as `lockstep bench all_reduce` measures: one checked call, warm-up,
 * then calls one after the other; a call's time is that of the slowest rank. Rank 0 prints one JSON
 * object. Built and started by bench/collectives.
 *
 * usage: mpirun -n RANKS peer_mpi BYTES ITERATIONS WARMUP in|out */
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_times(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Element i of rank r: small whole numbers, so that any order of summing gives the same. */
static float value(int rank, int i) {
    return (float)((i + rank * 3) % 5);
}

static int verify(const float *recv, int count, int ranks) {
    for (int i = 0; i < count; i++) {
        float want = 0;
        for (int r = 0; r < ranks; r++)
            want += value(r, i);
        if (recv[i] != want)
            return 0;
    }
    return 1;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc != 5) {
        fprintf(stderr, "usage: peer_mpi BYTES ITERATIONS WARMUP in|out\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int rank, ranks, count = atoi(argv[1]) / (int)sizeof(float);
    int iterations = atoi(argv[2]), warmup = atoi(argv[3]);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    float *recv = malloc((size_t)count * sizeof *recv),
          *other = malloc((size_t)count * sizeof *other);
    double *times = calloc((size_t)iterations, sizeof *times);
    if (!recv || !other || !times)
        MPI_Abort(MPI_COMM_WORLD, 1);
    int in_place = strcmp(argv[4], "in") == 0;
    const void *send = in_place ? MPI_IN_PLACE : other;
    for (int i = 0; i < count; i++)
        other[i] = recv[i] = value(rank, i);
    MPI_Allreduce(send, recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    int good = verify(recv, count, ranks);
    MPI_Allreduce(MPI_IN_PLACE, &good, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    for (int i = 0; i < warmup; i++)
        MPI_Allreduce(send, recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    double before = MPI_Wtime();
    for (int i = 0; i < iterations; i++) {
        MPI_Allreduce(send, recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        double after = MPI_Wtime();
        times[i] = (after - before) * 1e6;
        before = after;
    }
    MPI_Allreduce(MPI_IN_PLACE, times, iterations, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    qsort(times, (size_t)iterations, sizeof *times, compare_times);
    if (rank == 0)
        printf(
            "{\"op\":\"all_reduce\",\"transport\":\"mpi\",\"ranks\":%d,\"bytes\":%zu,\"us_p50\":%.4f,"
            "\"us_p99\":%.4f,\"verified\":%s}\n",
            ranks, (size_t)count * sizeof(float), times[(iterations - 1) / 2],
            times[(size_t)((iterations - 1) * 0.99 + 0.5)], good ? "true" : "false");
    MPI_Finalize();
    return good ? 0 : 1;
}
