/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of MPI ranks, in a library of their own: libreshard-mpi, which is linked with the MPI that it was built with.
 */
#ifndef RESHARD_MPI_H
#define RESHARD_MPI_H

#include "reshard/comm.h"

/* Without MPI's old C++ interface, which would need a library of its own. */
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * This rank's end of a group of all ranks of a communicator, which is duplicated: collective. MPI is initialised before, with
 * MPI_THREAD_SERIALIZED at least if more than one thread of a rank uses MPI, and finalised after reshard_comm_free. A rank that does not
 * come within the timeout is named, and the others told; what MPI itself does about a rank that dies (most end the whole job) comes first.
 * options may be NULL. One thread of each rank calls it. The communicator stays the caller's; its duplicate is kept until
 * reshard_comm_free, and freed at once after a failure.
 */
reshard_status reshard_comm_mpi(MPI_Comm communicator, const reshard_comm_options *options, reshard_comm **out, reshard_error *err);

#ifdef __cplusplus
}
#endif

#endif
