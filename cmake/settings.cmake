# Warnings as errors, sanitizers, ccache, and the one helper every folder uses.
find_program(CCACHE ccache)
if(CCACHE)  # which keeps objects with precompiled headers only if it may
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE})
endif()

# Warnings are errors with the compilers that the project is kept clean with; others warn of things of their own.
set(clean OFF)
if((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13) OR
   (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15))
  set(clean ON)
endif()
option(GACC_WERROR "treat warnings as errors" ${clean})

add_compile_options(-Wall -Wextra -fno-math-errno -ffp-contract=off)
if(GACC_WERROR)
  add_compile_options(-Werror)
endif()
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  string(REPLACE "-O3" "-O2" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")
endif()
if(GACC_SANITIZE)
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O1)
  add_link_options(-fsanitize=address,undefined)
  add_compile_definitions(GACC_CHECKED)  # the plan checker and the verifier run everywhere
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # 12 warns of variants that it has instrumented, and of LLVM's operators new
    add_compile_options(-Wno-maybe-uninitialized -Wno-mismatched-new-delete)
  endif()
endif()
if(GACC_FUZZERS)  # everything is instrumented; tests/fuzz links the fuzzer itself
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
    -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()

# Sets `out` to C++ initialisers {"FILE", R"(its text)"}, one a file; a change of a file configures anew.
function(gacc_texts out)
  set(all "")
  foreach(file ${ARGN})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    get_filename_component(name ${file} NAME)
    file(READ ${file} text)
    string(APPEND all "{\"${name}\", R\"file(${text})file\"},\n")
  endforeach()
  set(${out} "${all}" PARENT_SCOPE)
endfunction()

# LLVM's headers for the sources of a target.
function(gacc_llvm_headers name)
  target_include_directories(${name} SYSTEM PRIVATE ${LLVM_INCLUDE_DIRS})
  separate_arguments(definitions NATIVE_COMMAND "${LLVM_DEFINITIONS}")
  target_compile_definitions(${name} PRIVATE ${definitions})
endfunction()

# gacc_precompile(NAME KIND): the sources of NAME get the headers of libraries that most files of that KIND include
# (common, llvm, test), compiled once for all of them. With g++ alone: a build with clang shows that every file includes
# what it uses. Not with the sanitizers: g++ 12 crashes where a file of -O3 has headers that were compiled with -O1.
set(gnu OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(gnu ON)
endif()
set(precompiles ${gnu})
if(GACC_SANITIZE)
  set(precompiles OFF)
endif()
option(GACC_PRECOMPILE "compile the headers of libraries once" ${precompiles})
set(precompiled_common fmt/format.h fmt/ranges.h algorithm array bit charconv cmath cstdint cstring functional limits
  map memory numeric optional ranges set span string string_view tuple utility variant vector)
set(precompiled_llvm ${precompiled_common} llvm/IR/IRBuilder.h llvm/IR/InlineAsm.h llvm/IR/Module.h)
set(precompiled_test ${precompiled_common} gtest/gtest.h)
function(gacc_precompile name kind)
  if(NOT GACC_PRECOMPILE)
    return()
  endif()
  set(precompiled gacc_precompiled_${kind})
  if(NOT TARGET ${precompiled})
    file(WRITE ${CMAKE_BINARY_DIR}/precompiled_${kind}.cpp "")
    add_library(${precompiled} OBJECT ${CMAKE_BINARY_DIR}/precompiled_${kind}.cpp)
    list(TRANSFORM precompiled_${kind} REPLACE "(.+)" "<\\1>" OUTPUT_VARIABLE headers)
    target_precompile_headers(${precompiled} PRIVATE ${headers})
    target_compile_definitions(${precompiled} PRIVATE FMT_SHARED)
    if(kind STREQUAL "llvm")
      gacc_llvm_headers(${precompiled})
    elseif(kind STREQUAL "test")
      target_link_libraries(${precompiled} PRIVATE GTest::gtest)
    endif()
  endif()
  target_compile_definitions(${name} PRIVATE FMT_SHARED)
  target_compile_options(${name} PRIVATE -fPIC)  # programs, too, as those headers are
  target_precompile_headers(${name} REUSE_FROM ${precompiled})
endfunction()

# gacc_runs_once(NAME): the sources of NAME are compiled for a short build. It is for what a program does once.
function(gacc_runs_once name)
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # 12 warns there of strings of the standard library
    target_compile_options(${name} PRIVATE -Wno-array-bounds -Wno-stringop-overflow -Wno-restrict)
  endif()
endfunction()

# gacc_joins_sources(NAME): the sources of NAME are compiled eight at a time, as if they were one. Headers are read and
# templates instantiated once for the eight. Names in their unnamed namespaces differ. With g++ alone, for the reason
# above.
option(GACC_JOIN_SOURCES "compile several sources as one" ${gnu})
function(gacc_joins_sources name)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${GACC_JOIN_SOURCES} UNITY_BUILD_BATCH_SIZE 8)
endfunction()

# gacc_library(NAME SOURCES... PRECOMPILED kind LINK libs...): a static library of one folder.
function(gacc_library name)
  cmake_parse_arguments(ARG "" "PRECOMPILED" "LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PUBLIC ${ARG_LINK})
  if(NOT ARG_PRECOMPILED)
    set(ARG_PRECOMPILED common)
  endif()
  gacc_precompile(${name} ${ARG_PRECOMPILED})
  gacc_joins_sources(${name})
endfunction()
