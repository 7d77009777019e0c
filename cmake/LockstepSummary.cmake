# What this build can do, in one table.
function(lockstep_say what yes no)
  if(${what})
    message(STATUS "  ${yes}")
  else()
    message(STATUS "  ${no}")
  endif()
endfunction()
message(STATUS "Lockstep ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}, ${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}")
lockstep_say(LOCKSTEP_WITH_TCP "tcp transport: on (libsodium ${SODIUM_VERSION})"
  "tcp transport: OFF, install libsodium-dev to run ranks over a network")
lockstep_say(OPENMPI_FOUND "mpi transport, OpenMPI: on (${OPENMPI_VERSION})"
  "mpi transport, OpenMPI: OFF, install libopenmpi-dev to run under its mpirun")
lockstep_say(MPICH_FOUND "mpi transport, MPICH: on (${MPICH_VERSION})"
  "mpi transport, MPICH: OFF, install libmpich-dev to run under its mpirun")
if(NOT LOCKSTEP_COMM_ONLY)
  message(STATUS "  kernels: oneDNN ${DNNL_VERSION}; launcher: libuv ${UV_VERSION}; topology: hwloc ${HWLOC_VERSION}")
  lockstep_say(ZLIB_FOUND "gzipped data: on (zlib ${ZLIB_VERSION})"
    "gzipped data: OFF, install zlib1g-dev to read .gz files")
endif()
if(LOCKSTEP_TESTS)
  lockstep_say(CMOCKA_FOUND "tests: on (cmocka ${CMOCKA_VERSION})" "tests: OFF, install libcmocka-dev")
endif()
if(LOCKSTEP_SANITIZE)
  message(STATUS "  sanitizers: ${LOCKSTEP_SANITIZE}")
endif()
