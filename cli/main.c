/* SPDX-License-Identifier: Apache-2.0 */
#include "command_run.h"
#include "commands.h"

int main(int argc, char **argv)
{
    static struct options options;
    output_begin();
    install_signals();
    int status = options_parse(argc, argv, &options);
    status = status < 0 ? command_run(&options) : finish_output(&options, status);
    options_release(&options);
    return status;
}
