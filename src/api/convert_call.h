/* SPDX-License-Identifier: Apache-2.0 */
/* The options of conversions, for those who prepare one. */
#ifndef API_CONVERT_CALL_H
#define API_CONVERT_CALL_H

#include "api/public_options.h"
#include "convert/conversion.h"
#include "store/store_calls.h"

/* A call's options, in the structs of the layers below, which point into it: it may not be moved. */
struct convert_call {
    reshard_convert_options given;
    struct conversion_options options;
    struct open_call open;
    struct run_call run;
    struct map_call map;
    struct store_calls store;
};

/* target_path, which may be NULL, says the format where the options do not. Release the call's mapping (map_call_release) on failure
 * too. */
reshard_status convert_options_read(const reshard_convert_options *options, const reshard_run_options *run, const char *target_path,
                                    struct convert_call *out, reshard_error *err);

/* The functions of a caller's store. */
reshard_status store_take(const reshard_store *given, struct store_calls *out, reshard_error *err);

#endif
