# Warnings as errors, sanitizers, ccache, and the one helper every folder uses.
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
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

# gacc_library(NAME SOURCES... LINK libs...): a static library of one folder.
function(gacc_library name)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PUBLIC ${ARG_LINK})
endfunction()
