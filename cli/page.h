/* SPDX-License-Identifier: Apache-2.0 */
/* The pages and pictures that draw writes. All of them take names from files of strangers, and make them text. */
#ifndef CLI_PAGE_H
#define CLI_PAGE_H

#include "layout_map.h"

#include <stdio.h>

/* A self-contained page around its data, JSON text. */
void page_write(FILE *out, const char *title, const char *json, size_t size);

/* A map as the page's JSON. name is its heading. */
void map_json(FILE *out, const struct layout_map *map, const char *name);

/* What moves between the columns of two maps, as JSON: [[from, to, bytes], …]; from is -1 for values that are made. False: no memory. */
bool moves_json(FILE *out, const struct layout_map *from, const struct layout_map *to, const reshard_report *report);

/* Maps, one under the other, as a picture of its own. */
void maps_svg(FILE *out, const char *title, const struct layout_map *const *maps, const char *const *names, size_t count);

/* A map for a terminal, coloured or not. */
void map_text(FILE *out, const struct layout_map *map, bool is_coloured);

/* Text for XML and HTML: markup, control characters and invisible ones are escaped. */
void xml_text(FILE *out, const char *data, size_t size);

/* "torch-dcp · 12 tensors …" under a title. */
void map_summary(FILE *out, const struct layout_map *map);

#endif
