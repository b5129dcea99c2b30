/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/mapped.h"

static reshard_status make_mapped(const struct checkpoint *a, const struct mapping_request *request, const struct naming_options *naming,
                                  const struct catalog *types, struct finding_sink *findings, struct mapped *out, reshard_error *err)
{
    const struct naming_options none = { 0 };
    const struct selection_options tensors = { .drop_items = true, .types = types, .naming = naming ? *naming : none };
    out->catalog = a->source->catalog;
    reshard_status status = mapping_make(request, &out->mapping, err);
    if (!status && out->mapping.names)
        finding_report(findings, FINDING_NOTE, "names", STR(""), "compared under other %s", out->mapping.names);
    if (status || (!out->mapping.stage && !types && !naming_is_asked(&tensors.naming)))
        return status;
    status = selection_make(a->source->catalog, out->mapping.stage, "mapped", &tensors, NULL, &out->selection, err);
    if (!status)
        status = catalog_seal(out->selection.wanted, true, err);
    if (!status)
        out->catalog = out->selection.wanted;
    return status;
}

reshard_status mapped_make(const struct checkpoint *a, const struct checkpoint *b, const struct mapping_options *options,
                           const struct naming_options *naming, bool takes_types, struct finding_sink *findings, struct mapped *out,
                           reshard_error *err)
{
    const struct mapping_request request = { .source = a->source, .other = b->source, .is_comparison = true, .options = options };
    return make_mapped(a, &request, naming, takes_types ? b->source->catalog : NULL, findings, out, err);
}

reshard_status mapped_make_model(const struct checkpoint *a, const struct catalog *model, struct str config,
                                 struct finding_sink *findings, struct mapped *out, reshard_error *err)
{
    const struct mapping_options options = { .config = config };
    const struct mapping_request request = { .source = a->source, .model = model, .is_comparison = true, .options = &options };
    return make_mapped(a, &request, NULL, NULL, findings, out, err);
}

void mapped_release(struct mapped *mapped)
{
    selection_release(&mapped->selection);
    mapping_made_release(&mapped->mapping);
}
