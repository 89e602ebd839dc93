# install.cmake - what `cmake --install` lays down: headers, libisthmus, isthmus.pc, the CMake package. Paths inside are
# relative, so that the whole may be moved or installed under another --prefix.
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS isthmus LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})

file(RELATIVE_PATH ISTHMUS_PC_UP /x/${CMAKE_INSTALL_LIBDIR}/pkgconfig /x)
file(RELATIVE_PATH ISTHMUS_CMAKE_UP /x/${CMAKE_INSTALL_LIBDIR}/cmake/isthmus /x)
configure_file(cmake/isthmus.pc.in ${PROJECT_BINARY_DIR}/isthmus.pc @ONLY)
configure_file(cmake/isthmusConfig.cmake.in ${PROJECT_BINARY_DIR}/isthmusConfig.cmake @ONLY)
include(CMakePackageConfigHelpers)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/isthmusConfigVersion.cmake VERSION ${PROJECT_VERSION}
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/isthmus.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${PROJECT_BINARY_DIR}/isthmusConfig.cmake ${PROJECT_BINARY_DIR}/isthmusConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/isthmus)
