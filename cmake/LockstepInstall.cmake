# Headers, libraries, pkg-config files and the CMake package.
install(DIRECTORY include/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS lockstep-comm EXPORT lockstepTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
set(LOCKSTEP_PC_NAMES lockstep-comm)
if(NOT LOCKSTEP_COMM_ONLY)
  install(TARGETS lockstep EXPORT lockstepTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(TARGETS lockstep-cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  list(APPEND LOCKSTEP_PC_NAMES lockstep)
endif()
foreach(mpi openmpi mpich)
  if(TARGET lockstep-mpi-${mpi})
    install(TARGETS lockstep-mpi-${mpi} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/lockstep)
  endif()
endforeach()
# Relative to the file itself, so that an installation can be moved, also by cmake --install --prefix.
file(RELATIVE_PATH LOCKSTEP_PC_TO_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
foreach(name ${LOCKSTEP_PC_NAMES})
  configure_file(cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
install(EXPORT lockstepTargets NAMESPACE Lockstep:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
configure_package_config_file(cmake/lockstepConfig.cmake.in ${PROJECT_BINARY_DIR}/lockstepConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/lockstepConfig.cmake ${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
