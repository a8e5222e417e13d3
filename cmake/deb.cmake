# The Debian packages, one of each component: `cpack -G DEB` in the build folder (scripts/package does it).
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR gacc)
set(CPACK_PACKAGE_CONTACT "gacc maintainers <maintainers@gacc.invalid>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_OUTPUT_FILE_PREFIX ${CMAKE_BINARY_DIR}/packages)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_COMPONENTS_ALL gacc gacc-compiler gacc-cpu libgacc0 libgacc-dev)
if(TARGET gacc-mpi)
  list(APPEND CPACK_COMPONENTS_ALL gacc-mpi)
endif()
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)

# gacc_package(COMPONENT "what it is in a line" "what is in it" fields...)
# fields are NAME VALUE pairs of its control file.
function(gacc_package component summary text)
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${component} PARENT_SCOPE)
  set(CPACK_COMPONENT_${upper}_DESCRIPTION "${summary}\n${text}" PARENT_SCOPE)
  while(ARGN)
    list(POP_FRONT ARGN field value)
    set(CPACK_DEBIAN_${upper}_PACKAGE_${field} "${value}" PARENT_SCOPE)
  endwhile()
  # What every package has: who may copy it, and what changed.
  set(changelog ${CMAKE_BINARY_DIR}/pages/changelog.gz)
  configure_file(cmake/deb/changelog.in ${CMAKE_BINARY_DIR}/pages/changelog)
  execute_process(COMMAND gzip -9nc ${CMAKE_BINARY_DIR}/pages/changelog
    OUTPUT_FILE ${changelog} COMMAND_ERROR_IS_FATAL ANY)
  install(FILES cmake/deb/copyright ${changelog}
    DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${component} COMPONENT ${component} EXCLUDE_FROM_ALL)
endfunction()

gacc_package(gacc "executor of training steps that gacc compiled"
"gacc compiles a training step (forward, backward, gradient accumulation,
optimizer and memory plan) to one text file. gacc-exec trains with it on a
GPU, or on a CPU with the package gacc-cpu. The emulator of GPUs, the
documentation and examples are here, too."
  RECOMMENDS "gacc-cpu (= ${PROJECT_VERSION})" SUGGESTS "gacc-compiler (= ${PROJECT_VERSION})")
gacc_package(gacc-compiler "compiler of training steps"
"gaccc reads a model file and writes one text file with forward, backward,
gradient accumulation, optimizer and memory plan, for gacc-exec. gacc-opt
runs single passes, and gacc-plan the memory planners."
  SUGGESTS "gacc (= ${PROJECT_VERSION})")
gacc_package(gacc-cpu "runs training steps of gacc on a CPU"
"The plug-in of gacc-exec that compiles a training step for the CPU it runs
on, with LLVM for loops and oneDNN for matrix products."
  DEPENDS "gacc (= ${PROJECT_VERSION}) | libgacc0 (= ${PROJECT_VERSION})")
if(TARGET gacc-mpi)
  gacc_package(gacc-mpi "training steps of gacc on several processes"
"The plug-in of gacc-exec that lets the ranks of a run talk over MPI, on one
machine or on several."
    DEPENDS "gacc (= ${PROJECT_VERSION})" RECOMMENDS "openmpi-bin")
endif()
gacc_package(libgacc0 "training steps of gacc, from C: the library"
"What gacc-exec and gaccc do, as a C library: open or compile a step, train with
a program's own arrays, evaluate, save. It runs on a GPU; on a CPU with the
package gacc-cpu, and compiles with gacc-compiler."
  SECTION libs CONTROL_EXTRA ${CMAKE_SOURCE_DIR}/cmake/deb/triggers
  RECOMMENDS "gacc-cpu (= ${PROJECT_VERSION})" SUGGESTS "gacc-compiler (= ${PROJECT_VERSION})")
gacc_package(libgacc-dev "training steps of gacc, from C: to build with"
"The header gacc.h, with files for pkg-config and CMake."
  SECTION libdevel DEPENDS "libgacc0 (= ${PROJECT_VERSION})")
include(CPack)
