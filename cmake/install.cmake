# What `cmake --install` puts where, by component; the components gacc* are Debian packages (deb.cmake). The
# tree works wherever it is put: programs find plug-ins at ../lib/gacc from themselves.
include(GNUInstallDirs)
set(zsh ${CMAKE_INSTALL_DATADIR}/zsh)
set(programs_gacc gacc-exec)
set(programs_gacc-compiler gaccc gacc-opt gacc-plan)

# Man pages and completion, from the programs' own option tables.
set(pages ${CMAKE_BINARY_DIR}/pages)
set(command ${CMAKE_SOURCE_DIR}/scripts/commands.py)
add_custom_command(OUTPUT ${pages}/stamp
  COMMAND ${Python3_EXECUTABLE} ${command} --bin ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} --out ${pages}
  COMMAND ${CMAKE_COMMAND} -E touch ${pages}/stamp
  DEPENDS ${command} ${programs_gacc} ${programs_gacc-compiler})
add_custom_target(gacc-pages ALL DEPENDS ${pages}/stamp)

foreach(component gacc gacc-compiler)
  install(TARGETS ${programs_${component}} RUNTIME COMPONENT ${component})
  foreach(program ${programs_${component}})
    install(FILES ${pages}/man/${program}.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT ${component})
    install(FILES ${pages}/bash/${program}
      DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT ${component})
    # Debian has a folder of its own for what packages bring.
    install(FILES ${pages}/zsh/_${program} DESTINATION ${zsh}/site-functions COMPONENT zsh)
    install(FILES ${pages}/zsh/_${program} DESTINATION ${zsh}/vendor-completions COMPONENT ${component}
      EXCLUDE_FROM_ALL)
  endforeach()
endforeach()

install(TARGETS gacc-emu-driver LIBRARY DESTINATION lib/gacc COMPONENT gacc)
install(TARGETS gacc-host LIBRARY DESTINATION lib/gacc COMPONENT gacc-cpu)
if(TARGET gacc-mpi)
  install(TARGETS gacc-mpi LIBRARY DESTINATION lib/gacc COMPONENT gacc-mpi)
endif()

# README.md, docs and examples lie together as in the source, so that their links hold.
set(doc ${CMAKE_INSTALL_DATADIR}/doc/gacc)
install(FILES README.md DESTINATION ${doc} COMPONENT gacc)
install(DIRECTORY docs examples DESTINATION ${doc} COMPONENT gacc)
install(DIRECTORY python/examples DESTINATION ${doc}/python COMPONENT gacc)
install(PROGRAMS scripts/compare-logs DESTINATION ${doc}/examples COMPONENT gacc)
install(FILES LICENSE DESTINATION ${doc} COMPONENT license)  # no package: Debian has it in copyright

# The library: its CMake package and pkg-config file know no path but their own.
install(TARGETS gacc EXPORT gacc
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT libgacc0 NAMELINK_COMPONENT libgacc-dev
  PUBLIC_HEADER DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT libgacc-dev
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY python/gacc DESTINATION ${CMAKE_INSTALL_DATADIR}/gacc/python COMPONENT libgacc0
  PATTERN __pycache__ EXCLUDE)
install(TARGETS gacc-compiler LIBRARY DESTINATION lib/gacc COMPONENT gacc-compiler)
include(CMakePackageConfigHelpers)
set(config ${CMAKE_INSTALL_LIBDIR}/cmake/gacc)
file(WRITE ${CMAKE_BINARY_DIR}/pages/gacc-config.cmake "include(\${CMAKE_CURRENT_LIST_DIR}/gacc-targets.cmake)\n")
write_basic_package_version_file(${CMAKE_BINARY_DIR}/pages/gacc-config-version.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT gacc NAMESPACE gacc:: FILE gacc-targets.cmake DESTINATION ${config} COMPONENT libgacc-dev)
install(FILES ${CMAKE_BINARY_DIR}/pages/gacc-config.cmake ${CMAKE_BINARY_DIR}/pages/gacc-config-version.cmake
  DESTINATION ${config} COMPONENT libgacc-dev)
file(RELATIVE_PATH up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" up "${up}")
configure_file(cmake/gacc.pc.in ${CMAKE_BINARY_DIR}/pages/gacc.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/pages/gacc.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT libgacc-dev)

# All that is installed, and no tests.
add_custom_target(product DEPENDS gacc-pages gacc-emu-driver gacc-host gacc gacc-compiler)
if(TARGET gacc-mpi)
  add_dependencies(product gacc-mpi)
endif()
