/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/parallel_words.h"

const struct layout_word parallel_words[] = {
    { "tp", "ranks", "tensor parallel", false, NULL },
    { "pp", "ranks", "pipeline parallel", false, NULL },
    { "vp", "chunks", "virtual pipeline: model chunks of each stage", false, NULL },
    { "ep", "ranks", "expert parallel", false, NULL },
    { "etp", "ranks", "tensor parallel, of experts", false, NULL },
    { "dp", "ranks", "data parallel", true, NULL },
    { "ranks", "ranks", NULL, true, NULL },
    { NULL, NULL, NULL, false, NULL },
};

const struct layout_word rank_words[] = {
    { "ranks", "ranks", "ranks that tensors are spread over", true, NULL },
    { "dp", "ranks", NULL, true, NULL },
    { NULL, NULL, NULL, false, NULL },
};

struct parallel_sizes parallel_sizes_of(const struct layout_request *request)
{
    return (struct parallel_sizes){
        .tp = layout_number(request, "tp"),
        .pp = layout_number(request, "pp"),
        .vp = layout_number(request, "vp"),
        .ep = layout_number(request, "ep"),
        .etp = layout_number(request, "etp"),
        .dp = layout_number(request, "dp"),
    };
}
