/* Dynamic loss scaling, as torch.cuda.amp.GradScaler: grow after `interval` good updates, back off after one
 * that had to be left out. */
#include "base/error.h"
#include <lockstep/optimizer.h>

#include <math.h>

static const double FIRST = 65536, GROWTH = 2, BACKOFF = 0.5, LEAST = 0x1p-60, MOST = 0x1p60;
enum { INTERVAL = 2000 };

ls_status ls_loss_scaler_init(ls_loss_scaler *scaler, double fixed) {
    if (!scaler)
        return ls__fail(LS_ERR_ARGUMENT, "ls_loss_scaler_init: scaler is NULL");
    if (!(fixed == 0 || (fixed >= LEAST && fixed <= MOST)))
        return ls__fail(LS_ERR_ARGUMENT,
                        "ls_loss_scaler_init: the scale is %g, want 0 (dynamic) or %g to %g", fixed,
                        LEAST, MOST);
    *scaler = (ls_loss_scaler){.scale = fixed > 0 ? fixed : FIRST,
                               .growth = GROWTH,
                               .backoff = BACKOFF,
                               .interval = INTERVAL,
                               .fixed = fixed > 0};
    return LS_OK;
}

void ls_loss_scaler_update(ls_loss_scaler *scaler, bool skipped) {
    if (!scaler || scaler->fixed)
        return;
    if (skipped) {
        scaler->scale = fmax(LEAST, scaler->scale * scaler->backoff);
        scaler->good = 0;
    } else if (++scaler->good >= scaler->interval) {
        scaler->scale = fmin(MOST, scaler->scale * scaler->growth);
        scaler->good = 0;
    }
}
