#include "src/local/local.h"
size_t local_backward_sm80_work(const loam_problem *) { return 0; }
loam_status local_backward_sm80(const loam_problem *, const loam_args *, loam_error *error) { return loam_fail(error, LOAM_EUNSUPPORTED, "no"); }
