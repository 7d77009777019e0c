# Finds the libraries that docs/decisions.md names under "Dependencies". A missing optional one switches its
# feature off and says so in the summary; a missing required one ends the configuration.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)

add_library(lockstep_comm_dependencies INTERFACE)
target_link_libraries(lockstep_comm_dependencies INTERFACE Threads::Threads m)

pkg_check_modules(SODIUM IMPORTED_TARGET libsodium)
set(LOCKSTEP_WITH_TCP ${SODIUM_FOUND})
if(LOCKSTEP_WITH_TCP)
  target_link_libraries(lockstep_comm_dependencies INTERFACE PkgConfig::SODIUM)
  target_compile_definitions(lockstep_comm_dependencies INTERFACE LOCKSTEP_WITH_TCP=1)
endif()

target_link_libraries(lockstep_comm_dependencies INTERFACE ${CMAKE_DL_LIBS})
pkg_check_modules(OPENMPI IMPORTED_TARGET ompi-c)
pkg_check_modules(MPICH IMPORTED_TARGET mpich)

if(NOT LOCKSTEP_COMM_ONLY)
  add_library(lockstep_dependencies INTERFACE)
  # Not find_package(dnnl): Debian's package file insists on OpenCL's headers, which nothing here uses.
  find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl_version.h REQUIRED)
  find_library(DNNL_LIBRARY dnnl REQUIRED)
  file(STRINGS ${DNNL_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h dnnl_numbers REGEX "_(MAJOR|MINOR|PATCH) [0-9]+")
  string(REGEX REPLACE "[^0-9;]+" "" dnnl_numbers "${dnnl_numbers}")
  string(REPLACE ";" "." DNNL_VERSION "${dnnl_numbers}")
  find_package(OpenMP REQUIRED COMPONENTS C)
  pkg_check_modules(UV REQUIRED IMPORTED_TARGET libuv)
  pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
  pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
  pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
  pkg_check_modules(ZLIB IMPORTED_TARGET zlib)
  target_link_libraries(lockstep_dependencies INTERFACE lockstep_comm_dependencies ${DNNL_LIBRARY}
    OpenMP::OpenMP_C PkgConfig::UV PkgConfig::JANSSON PkgConfig::HWLOC PkgConfig::XXHASH)
  target_include_directories(lockstep_dependencies SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
  if(ZLIB_FOUND)
    target_link_libraries(lockstep_dependencies INTERFACE PkgConfig::ZLIB)
    target_compile_definitions(lockstep_dependencies INTERFACE LOCKSTEP_WITH_ZLIB=1)
  endif()
endif()

if(LOCKSTEP_TESTS)
  pkg_check_modules(CMOCKA IMPORTED_TARGET cmocka)
endif()
