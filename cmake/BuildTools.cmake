# What every target of the project shares: compiler cache, warnings, sanitizers, and sherd_add_library().

find_program(SHERD_CCACHE ccache)
if(SHERD_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${SHERD_CCACHE})
  # A precompiled header and its users hash alike only if ccache overlooks the header's time stamp.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${SHERD_CCACHE})
endif()

# GCC collects its garbage when its heap has grown, a sixth of the time of Sherd's sources: a larger heap needs that less often.
add_compile_options("$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:--param=ggc-min-heapsize=1048576>")

add_library(sherd_warnings INTERFACE)
target_compile_options(sherd_warnings INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;$<$<BOOL:${SHERD_WERROR}>:-Werror>>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees a faulty or overlong copy in `std::string(a) + "b"` (GCC bug 105651).
  target_compile_options(sherd_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds;-Wno-restrict;-Wno-stringop-overflow>")
endif()

if(CMAKE_UNITY_BUILD)
  # GCC takes a file that another includes for a header, and types of its anonymous namespace for different ones in each user.
  target_compile_options(sherd_warnings INTERFACE "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>")
endif()

add_library(sherd_sanitizers INTERFACE)
if(SHERD_SANITIZER)
  # GCC takes the sanitizers' own bookkeeping for reads of an optional's empty payload (GCC bug 105562 and its likes).
  target_compile_options(sherd_warnings INTERFACE "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-maybe-uninitialized>")
  target_compile_options(sherd_sanitizers INTERFACE
    -fsanitize=${SHERD_SANITIZER} -fno-sanitize=vptr -fno-omit-frame-pointer)
  target_link_options(sherd_sanitizers INTERFACE -fsanitize=${SHERD_SANITIZER})
endif()

# A static library of this project: its sources, warnings as errors, and includes from the project's root.
#   sherd_add_library(NAME SOURCES a.cpp … DEPS target …)
function(sherd_add_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_link_libraries(${name} PUBLIC ${ARG_DEPS}
    PRIVATE $<BUILD_INTERFACE:sherd_warnings> $<BUILD_INTERFACE:sherd_sanitizers>)
endfunction()

# fmt, for texts in the program. LibTorch's headers hold an fmt of their own, of another version and meant to be used without a
# library. These come before it, and lead to Debian's, which is a library and so cheaper to parse.
function(sherd_use_fmt)
  find_package(fmt 9 REQUIRED)
  get_target_property(include_dirs fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
  list(GET include_dirs 0 include_dir)
  set(headers ${PROJECT_BINARY_DIR}/fmt_headers)
  foreach(header core.h format.h)
    file(CONFIGURE OUTPUT ${headers}/fmt/${header} CONTENT "#undef FMT_HEADER_ONLY\n#include \"${include_dir}/fmt/${header}\"\n")
  endforeach()
  foreach(name ${ARGN})
    target_link_libraries(${name} PRIVATE fmt::fmt)
    target_include_directories(${name} SYSTEM BEFORE PRIVATE ${headers})
  endforeach()
endfunction()

# A precompiled header, for targets that see LibTorch's modules and autograd functions, which are slow to parse, and for tests; what sees
# LibTorch's tensors alone is faster without.
#   sherd_add_pch(NAME header.h DEPS target …)    makes it: a target of which the header is all
#   sherd_reuse_pch(TARGET [NAME])                uses it; without a name Sherd's own, with the narrow view of LibTorch
# A release has Sherd's own with -O1, and so has what uses it: GCC optimises what a header defines as the header was compiled.
# A program compiles as libraries do then: CMake's -fPIE would be another setting, for which the header does not hold.
function(sherd_add_pch name header)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  add_library(${name} OBJECT ${PROJECT_SOURCE_DIR}/cmake/pch.cpp)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} sherd_warnings sherd_sanitizers)
  target_precompile_headers(${name} PRIVATE ${header})
endfunction()
function(sherd_reuse_pch name)
  set(pch ${ARGV1})
  if(NOT pch)
    set(pch sherd_pch)
    sherd_narrow_torch(${name})
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  get_target_property(type ${name} TYPE)
  if(type STREQUAL "EXECUTABLE")
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${name} PRIVATE -fPIC)
  endif()
  target_precompile_headers(${name} REUSE_FROM ${pch})
endfunction()

# The headers of include/sherd/narrow and cmake/narrow before LibTorch's own.
function(sherd_narrow_torch name)
  target_compile_definitions(${name} PRIVATE SHERD_NARROW_TORCH)
  target_include_directories(${name} SYSTEM BEFORE PRIVATE
    ${PROJECT_SOURCE_DIR}/cmake/narrow ${PROJECT_SOURCE_DIR}/include/sherd/narrow)
endfunction()
