#ifndef LS_REDUCER_ALIGN_H
#define LS_REDUCER_ALIGN_H

/* Gradients begin and buckets end at multiples of this: a cache line is never written by the thread
 * that reduces one bucket and the thread that fills the next. */
enum { LS__GRADIENT_ALIGN = 64 };

#endif
