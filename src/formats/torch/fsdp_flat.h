/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizer's state of FSDP1 as each rank's own state_dict() gives it: pieces of flat parameters, of which no file says what part of a
 * parameter they are. The model's files beside have names, order and shapes of the parameters, and the lengths of the pieces have to come
 * out of the way in which FSDP1 flattens and cuts:
 *
 *   use_orig_params=True    state by parameter; a parameter's pieces make it up in the order of the shards. A rank without any has no state
 *   use_orig_params=False   state by unit, the flat parameter of a wrapped module, padded with zeros to shards of equal length
 *
 * Numbers of the state count the parameters that are trained, in the order of the model, and in the other case the units.
 */
#ifndef FORMATS_TORCH_FSDP_FLAT_H
#define FORMATS_TORCH_FSDP_FLAT_H

#include "encoding/torch_shard.h"
#include "formats/torch/fsdp_assemble.h"
#include "parallel/flat_unit.h"
#include "parallel/wrap_fit.h"

/* Which of the shards of all flat parameters a rank holds; others hold the same ones. */
struct fsdp_shards {
    uint32_t count, stride; /* rank R: R / stride % count */
};

/* Of a layout of the model's parameters. false: they are not cut once, as FSDP1 cuts them. */
bool fsdp_shards_of(const struct torch_shard_layout *layout, uint32_t world, struct fsdp_shards *out);

/* What an opened checkpoint's optimizer is, found out. Lies in the catalog's arena, but for units and states. */
struct fsdp_flat {
    bool is_original;                  /* use_orig_params */
    struct wrap_parameter *parameters; /* of the model, in its order */
    uint32_t *tensors;                 /* by parameter: the catalog's */
    uint32_t parameter_count;
    uint32_t *parameter_of; /* by number in the item's state */
    uint32_t number_count;
    struct fsdp_shards shards;
    int64_t *lengths;          /* is_original: elements of the piece of number i in shard s: [i * shards.count + s] */
    int64_t *begins;           /* where in the parameter each of these begins */
    struct wrap_units units;   /* count 0: which modules were wrapped is open, as the pieces go with several ways or with none */
    uint32_t *states;          /* tensors of the catalog that are cut with their parameters, in rising order; from the heap */
    uint32_t *number_of_state; /* by state; from the heap */
    uint32_t number_capacity;
    uint32_t state_count, state_capacity;
};

/* Joins the opened files of the optimizer, one a rank, of which the first is first_file: hidden tensors in the shapes of their parameters,
 * and the item `optimizer` with a number for each parameter. *out NULL: what they are cannot be told, and a warning says why. */
reshard_status fsdp_flat_read(struct assembling *assembling, uint32_t first_file, uint32_t ranks, struct fsdp_flat **out,
                              reshard_error *err);

/* How the modules must have been wrapped for is_original pieces to be as they are: as the rule says, or NULL, in any way. names: of the
 * parameters, as the rule knows them. */
reshard_status fsdp_flat_fit(const struct catalog *catalog, const struct fsdp_flat *flat, const struct wrap_parameter *names,
                             const char *rule, enum wrap_fit *found, struct wrap_units *out, reshard_error *err);

/* The same of a checkpoint whose optimizer holds wholes (FSDP2, one rank): which parameter each number is. *out NULL: several may be it.
 * Without units, lengths and shards. */
reshard_status fsdp_flat_of_wholes(const struct source *source, const struct value *optimizer, struct arena *arena, struct fsdp_flat **out,
                                   reshard_error *err);

/* The part of its parameter that number `number` has in a shard, of is_original pieces. false: it has no state there. */
bool fsdp_flat_part(const struct fsdp_flat *flat, uint32_t number, uint32_t shard, struct flat_unit_part *out);

/* What catalog_free does not. */
void fsdp_flat_release(struct fsdp_flat *flat);

#endif
