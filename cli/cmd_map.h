/* SPDX-License-Identifier: Apache-2.0 */
/* `reshard map`, which has verbs of its own. */
#ifndef CLI_CMD_MAP_H
#define CLI_CMD_MAP_H

/* argv[0] is "map". Returns the exit status. */
int command_map(int argc, char **argv);

#endif
