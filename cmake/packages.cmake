# Everything comes from Debian packages; a missing one is named, never downloaded.
macro(gacc_need package debian)
  find_package(${package} ${ARGN} QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "${package} was not found: install the Debian package ${debian}, or run scripts/test")
  endif()
endmacro()

gacc_need(fmt libfmt-dev)
gacc_need(ZLIB zlib1g-dev)
gacc_need(nlohmann_json nlohmann-json3-dev)
gacc_need(CLI11 libcli11-dev)
gacc_need(tomlplusplus libtomlplusplus-dev)
if(GACC_TESTS)
  gacc_need(GTest libgtest-dev)
endif()
gacc_need(Threads libc6-dev)

# oneDNN's own CMake file asks for OpenCL's headers, which nothing here uses: the header and the library suffice.
find_path(DNNL_INCLUDE oneapi/dnnl/dnnl.h)
find_library(DNNL_LIBRARY dnnl)
if(NOT DNNL_INCLUDE OR NOT DNNL_LIBRARY)
  message(FATAL_ERROR "oneDNN was not found: install the Debian package libdnnl-dev, or run scripts/test")
endif()
add_library(DNNL::dnnl UNKNOWN IMPORTED)
set_target_properties(DNNL::dnnl PROPERTIES
  IMPORTED_LOCATION ${DNNL_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE})

# SHA-256.
find_path(NETTLE_INCLUDE nettle/sha2.h)
find_library(NETTLE_LIBRARY nettle)
if(NOT NETTLE_INCLUDE OR NOT NETTLE_LIBRARY)
  message(FATAL_ERROR "nettle was not found: install the Debian package nettle-dev, or run scripts/test")
endif()

# LLVM: 19 is the floor; GACC_LLVM_DIR points at another one (the source also compiles on 22).
set(GACC_LLVM_DIR /usr/lib/llvm-19/lib/cmake/llvm CACHE PATH "folder of LLVMConfig.cmake")
find_package(LLVM QUIET CONFIG HINTS ${GACC_LLVM_DIR} NO_DEFAULT_PATH)
if(NOT LLVM_FOUND)
  message(FATAL_ERROR "LLVM was not found in ${GACC_LLVM_DIR}: install the Debian package llvm-19-dev")
endif()

# MPI is optional: with it, training over several processes (libgacc-mpi.so).
set(GACC_MPI AUTO CACHE STRING "ranks over MPI: AUTO (where it is installed), ON or OFF")
if(NOT GACC_MPI STREQUAL "OFF")
  find_package(MPI QUIET COMPONENTS C)
  if(GACC_MPI STREQUAL "ON" AND NOT MPI_C_FOUND)
    message(FATAL_ERROR "MPI was not found: install the Debian package libopenmpi-dev, or take -DGACC_MPI=OFF")
  endif()
endif()
