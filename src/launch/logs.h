/* What ranks write, as files: DIR/rank-N.out and DIR/rank-N.err, and in later rounds DIR/rank-N.round-K.out.
 *
 * Which streams of which ranks is said as torchrun has it: none|out|err|both (or 0|1|2|3) for all ranks, or
 * RANK:WHAT,RANK:WHAT,... for some. */
#ifndef LS_LAUNCH_LOGS_H
#define LS_LAUNCH_LOGS_H

#include "launch/job.h"

/* Whether --redirect and --tee can be read and name ranks that there can be. */
ls_status ls__logs_check(const ls__launch_options *options);
/* Says which of them a job of several machines does not have, once its size is known. */
void ls__logs_begin(const ls__launch_job *job);

/* This stream goes into its file only. */
bool ls__logs_redirects(const ls__launch_options *options, int rank, int stream);

/* The stream's file. One that cannot be written costs its lines, which is said once and makes a success a failure (exit
 * code 3), but does not end the ranks. */
void ls__logs_open(ls__stream *stream);
void ls__logs_write(ls__stream *stream, const char *data, size_t bytes);
void ls__logs_close(ls__stream *stream);

#endif
