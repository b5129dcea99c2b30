/* SPDX-License-Identifier: Apache-2.0 */
/* What is flattened where: units, their parameters and places in the flat parameter. Read from flat_meta files, or planned for a target. */
#ifndef FORMATS_ATORCH_MODEL_H
#define FORMATS_ATORCH_MODEL_H

#include "base/name_map.h"
#include "formats/atorch/atorch_meta.h"
#include "parallel/flat_unit.h"
#include "tensor/dtype.h"

#define ATORCH_FLAT_NAME "_flat_param" /* of a unit's flat parameter in the optimizer, where there are no original parameters */

struct atorch_parameter {
    struct str name, inner;  /* inner: inside the unit. Both empty: one without elements, of which no file tells */
    uint32_t unit;
    int rank;
    const int64_t *shape, *strides; /* strides NULL: row-major */
    int64_t numel, start;    /* start: of its first element in the unit's flat parameter */
    uint32_t tensor;         /* reading: catalog tensor of expert 0, those of the others follow; writing: wanted tensor of expert 0 */
};

struct atorch_unit {
    struct str name;
    enum dtype dtype;
    int64_t shard;           /* elements in each piece */
    int64_t unpadded;        /* up to the end of the last parameter */
    uint32_t experts, shards; /* experts * shards is the number of ranks; experts 1: all ranks share one flat parameter */
    bool has_experts;
    struct atorch_expert_place *places; /* by rank, if has_experts */
    int64_t alignment;       /* elements at whose multiples parameters begin; 1: none */
    uint32_t first, count;   /* of the model's parameters */
    uint32_t meta_file;      /* reading: the rank whose flat_meta told of it first */
    uint32_t file_count;     /* reading: files that hold it */
    uint32_t *holders;       /* by expert and shard: 1 + rank, if has_experts */
    struct atorch_meta_unit said;
};

struct atorch_model {
    struct arena arena;
    uint32_t ranks;
    const bool *is_lost;     /* reading what is damaged: by rank, whether its files are missing; NULL: none is */
    struct atorch_parameter *unplaced; /* then: parameters whose place only such files told */
    uint32_t unplaced_count;
    int version;
    bool has_strides;        /* files say param_strides and param_contiguities */
    bool is_original;        /* FSDP's use_orig_params: aligned, padded with 42, optimizer state by parameter */
    struct atorch_unit *units;
    struct atorch_parameter *parameters; /* those of a unit side by side, in its order */
    uint32_t unit_count, unit_capacity, parameter_count, parameter_capacity;
    struct name_map unit_names, parameter_names; /* number -> unit; number -> by_name */
    uint32_t *by_name;
    uint32_t by_name_capacity;
};

void atorch_model_release(struct atorch_model *model);

/* Which expert and which piece of its flat parameter the rank's file holds. */
static inline void atorch_place_of(const struct atorch_unit *unit, uint32_t rank, uint32_t *expert, uint32_t *shard)
{
    *expert = unit->has_experts ? (uint32_t)unit->places[rank].rank : 0;
    *shard = unit->has_experts ? (uint32_t)unit->places[rank].fsdp_rank : rank;
}

/* Whether the rank's files are missing: where it stands in units with experts is not known then. */
static inline bool atorch_rank_is_lost(const struct atorch_model *model, uint32_t rank)
{
    return model->is_lost && model->is_lost[rank];
}

/* The part of a parameter that lies in a piece; false if nothing of it does. */
static inline bool atorch_part_of(const struct atorch_unit *unit, const struct atorch_parameter *parameter, uint32_t shard,
                                  struct flat_unit_part *out)
{
    return flat_unit_part_of(unit->shard, unit->shards, shard, parameter->start, parameter->numel, out);
}

/* The parameter of that name, or NULL. */
const struct atorch_parameter *atorch_parameter_find(const struct atorch_model *model, struct str name);

/* ---- from files: atorch_building.c ---- */

/* A tensor of a flat_param file. */
struct atorch_flat {
    struct str unit;
    enum dtype dtype;
    int64_t count;
    int rank; /* axes of it: must be 1 */
};

/* What the files of the ranks tell, one after the other. */
struct atorch_building;
struct atorch_building *atorch_building_new(struct atorch_model *model, uint32_t ranks);
void atorch_building_free(struct atorch_building *building);

/* Takes what one rank's two files say. Ranks come in order, without those that model->is_lost names. */
reshard_status atorch_building_add(struct atorch_building *building, uint32_t rank, const struct atorch_meta *meta,
                                   const struct atorch_flat *flats, uint32_t flat_count, reshard_error *err);

/* Parameters that no file names: those without elements between two shards, and those that lay in the files of lost ranks alone. */
struct atorch_nameless {
    uint32_t empty, lost;
};

/* Proves that pieces make up the parameters, and parameters and padding the units. */
reshard_status atorch_building_finish(struct atorch_building *building, struct atorch_nameless *nameless, reshard_error *err);

#endif
