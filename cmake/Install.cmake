# cmake --install: libsherd, its headers and CMake package, and the programs sherd, tokenizer_check and chat_check where they are built.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Sherd)
set(libraries_dir ${CMAKE_INSTALL_LIBDIR}/sherd)  # what is loaded
# What libsherd links privately are parts of it, and no interfaces of their own.
set_target_properties(sherd_error PROPERTIES EXPORT_NAME error)
set_target_properties(sherd_files PROPERTIES EXPORT_NAME files)
set_target_properties(sherd_launch PROPERTIES EXPORT_NAME launch)
set_target_properties(sherd_safetensors PROPERTIES EXPORT_NAME safetensors)
install(TARGETS sherd sherd_error sherd_files sherd_launch sherd_safetensors EXPORT SherdTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/sherd DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT SherdTargets NAMESPACE sherd:: DESTINATION ${package_dir})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/SherdConfig.cmake.in ${PROJECT_BINARY_DIR}/SherdConfig.cmake
  INSTALL_DESTINATION ${package_dir} PATH_VARS libraries_dir)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/SherdConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/SherdConfig.cmake ${PROJECT_BINARY_DIR}/SherdConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/LibTorch.cmake ${PROJECT_SOURCE_DIR}/cmake/LibTorchCuda.cmake
  DESTINATION ${package_dir})

# The program brings along the LibTorch of this clone, which may go; another LibTorch is used where it lies.
cmake_path(IS_PREFIX PROJECT_SOURCE_DIR "${SHERD_TORCH_DIR}" NORMALIZE sherd_brings_torch)
if(sherd_brings_torch AND SHERD_BUILD_LLM)
  install(DIRECTORY ${SHERD_TORCH_DIR}/lib/ DESTINATION ${libraries_dir}/torch/lib FILES_MATCHING PATTERN "*.so*")
  install(DIRECTORY ${SHERD_TORCH_DIR}/../nvidia/ DESTINATION ${libraries_dir}/nvidia FILES_MATCHING PATTERN "*.so*")
  set(run_path "$ORIGIN/../${libraries_dir}/torch/lib")
else()
  set(sherd_brings_torch FALSE)
  set(run_path ${SHERD_TORCH_DIR}/lib)
endif()
if(SHERD_CUDA)  # LibTorch finds the rest by its own run path, from its folder's neighbour nvidia/
  cmake_path(IS_PREFIX PROJECT_SOURCE_DIR "${sherd_cuda_runtime_dir}" NORMALIZE sherd_cuda_is_of_clone)
  if(sherd_brings_torch AND sherd_cuda_is_of_clone)
    list(APPEND run_path "$ORIGIN/../${libraries_dir}/nvidia/cu13/lib")
  else()
    list(APPEND run_path ${sherd_cuda_runtime_dir})
  endif()
  # Loaded by programs, which have this folder in their run path: SherdConfig.cmake gives it to those that others link. They find
  # LibTorch's part for GPUs where the program of this project finds the other.
  file(RELATIVE_PATH programs_from_plugins /${libraries_dir} /${CMAKE_INSTALL_BINDIR})
  string(REPLACE "$ORIGIN/" "$ORIGIN/${programs_from_plugins}/" plugin_run_path "${run_path}")
  set(plugins sherd_cuda)
  if(SHERD_BUILD_LLM)
    list(APPEND plugins sherd_ops_cuda)
  endif()
  set_target_properties(${plugins} PROPERTIES INSTALL_RPATH "${plugin_run_path}")
  install(TARGETS ${plugins} LIBRARY DESTINATION ${libraries_dir})
  list(APPEND run_path "$ORIGIN/../${libraries_dir}")
endif()
if(SHERD_BUILD_LLM)
  set_target_properties(sherd_program PROPERTIES INSTALL_RPATH "${run_path}")
  install(TARGETS sherd_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(TARGETS tokenizer_check chat_check RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} OPTIONAL)  # the quick start does not build them all
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/recipes DESTINATION share/sherd USE_SOURCE_PERMISSIONS)  # beside bin/: app/recipes.cpp looks there
endif()
