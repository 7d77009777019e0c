#include <lockstep/optimizer.h>
#include <math.h>

double ls_schedule_rate(const ls_schedule *schedule, uint64_t step) {
    if (!schedule)
        return 0;
    const double pi = 3.141592653589793;
    double peak = schedule->peak, floor = schedule->floor;
    if (step < schedule->warmup)
        return peak * ((double)step + 1) / ((double)schedule->warmup + 1);
    if (schedule->kind == LS_CONSTANT)
        return peak;
    if (step >= schedule->steps)
        return floor;
    double done = (double)(step - schedule->warmup) / (double)(schedule->steps - schedule->warmup);
    if (schedule->kind == LS_COSINE)
        return floor + 0.5 * (1 + cos(pi * done)) * (peak - floor);
    return floor + (1 - done) * (peak - floor);
}
