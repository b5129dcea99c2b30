/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fails one call of the code under test to the operating system's files: pread, pwrite, openat, ftruncate, fsync, fdatasync, mkdirat,
 * fallocate, copy_file_range. Test programs that link fail_io.c send these through here.
 */
#ifndef TESTS_FAIL_IO_H
#define TESTS_FAIL_IO_H

#include <stdbool.h>

/* The nth call from now, counted from 1, fails with the error number; with is_sticky all later ones do as well (a full disk). */
void fail_io_at(unsigned long nth, int error_number, bool is_sticky);

/* Whether the failure has happened; switches it off. */
bool fail_io_was_hit(void);

/* Calls since fail_io_at. */
unsigned long fail_io_calls(void);

#endif
