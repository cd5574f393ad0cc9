# CUDA, where there is a compiler for it: `scripts/setup cuda`, or a toolkit of the machine. Compiling
# needs no GPU, and programs link nothing but the static runtime, which looks for a driver when it is
# first asked for a device; cuBLAS is looked up then, too (worker/backend/cuda/matmul.h).
#
# Sets RUBATO_CUDA_KIT (empty: none) and NCCL_INCLUDE, where NCCL's header is. -DRUBATO_CUDA=OFF
# builds without, -DRUBATO_CUDA=/usr/local/cuda with that one.
set(RUBATO_CUDA AUTO CACHE STRING "AUTO, OFF, or the folder of a CUDA 13 toolkit")
set(RUBATO_CUDA_KIT "")
if(RUBATO_SANITIZE)
  # The sanitizers see nothing of it.
elseif(RUBATO_CUDA STREQUAL AUTO)
  execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/build-cuda --print
    OUTPUT_VARIABLE RUBATO_CUDA_KIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT RUBATO_CUDA_KIT AND EXISTS /usr/local/cuda/include/cublasLt.h)
    set(RUBATO_CUDA_KIT /usr/local/cuda)
  endif()
elseif(RUBATO_CUDA)
  set(RUBATO_CUDA_KIT ${RUBATO_CUDA})
endif()
if(RUBATO_CUDA_KIT)
  find_path(NCCL_INCLUDE nccl.h PATHS ${RUBATO_CUDA_KIT}/../nccl/include NO_CACHE)
  message(STATUS "CUDA backend: compiled with ${RUBATO_CUDA_KIT}/bin/nvcc")
else()
  message(STATUS "CUDA backend: left out (scripts/setup cuda brings its compiler)")
endif()

# Our own kernels, always with the flags of nvcc.options whatever the preset: no contraction,
# subnormals flushed, division and square root rounded correctly; a kernel that spills registers is an
# error. Machine code alone, so that no driver compiles anew what a job's bits depend on.
set(RUBATO_CUDA_OPTIONS ${PROJECT_SOURCE_DIR}/worker/backend/cuda/nvcc.options)
set(RUBATO_CUDA_FLAGS
  -gencode arch=compute_80,code=sm_80
  -gencode arch=compute_90a,code=sm_90a
  -gencode arch=compute_100a,code=sm_100a
  -Xcompiler=-fPIC,-Wall,-Wextra,-Werror,-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)

# rubato_cuda_objects(VARIABLE SOURCES …): the objects of .cu files, for a library's sources.
function(rubato_cuda_objects variable)
  cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
  set(objects)
  foreach(source ${ARG_SOURCES})
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${source}.o)
    get_filename_component(folder ${object} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(OUTPUT ${object}
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${RUBATO_CUDA_KIT}/bin/nvcc -ccbin ${CMAKE_CXX_COMPILER}
              -optf ${RUBATO_CUDA_OPTIONS} ${RUBATO_CUDA_FLAGS} -I${PROJECT_SOURCE_DIR} -MD -MF ${object}.d
              -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
      MAIN_DEPENDENCY ${source} DEPENDS ${RUBATO_CUDA_OPTIONS} DEPFILE ${object}.d VERBATIM COMMENT "CUDA ${source}")
    list(APPEND objects ${object})
  endforeach()
  set(${variable} ${objects} PARENT_SCOPE)
endfunction()
