# SPDX-License-Identifier: MIT
# The CUDA back end: on where there is a CUDA compiler. Builds that instrument host code leave it out: their
# tools see nothing of a kernel, and compute-sanitizer does (tools/gpu-check.sh).
include(CheckLanguage)

set(CMAKE_CUDA_ARCHITECTURES 80)
set(instrumented OFF)
if(LOAM_SANITIZE OR LOAM_COVERAGE OR LOAM_FUZZ)
    set(instrumented ON)
endif()
if(NOT DEFINED LOAM_CUDA AND NOT instrumented)
    check_language(CUDA)
endif()
if(CMAKE_CUDA_COMPILER AND NOT instrumented)
    set(found ON)
else()
    set(found OFF)
endif()
option(LOAM_CUDA "The CUDA back end (nvcc 12.4 or newer)" ${found})

set(LOAM_CUDA_CAPABILITIES 90 CACHE STRING
    "Compute capabilities whose machine code the plain CUDA kernels have; all else runs their PTX for 8.0")

if(LOAM_CUDA)
    set(CMAKE_CUDA_STANDARD 17)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
    set(CMAKE_CUDA_RUNTIME_LIBRARY None)
    enable_language(CUDA)
    # The C compiler links, and says itself what (src/CMakeLists.txt).
    set(CMAKE_CUDA_IMPLICIT_LINK_LIBRARIES "")
    set(CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES "")
    find_package(CUDAToolkit 12.4 REQUIRED)
endif()
