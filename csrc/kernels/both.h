// Code for the host and for a device: what its functions are marked with.
#pragma once

#ifdef __CUDACC__
#define LS_DEVICE __device__ __forceinline__
// What a kernel does once, and whose registers would leave its loop with too few.
#define LS_DEVICE_APART __device__ __noinline__
#define LS_BOTH __host__ __device__ __forceinline__
#define LS_UNROLL _Pragma("unroll")
#define LS_UNROLL_NONE _Pragma("unroll 1")
#else
#define LS_DEVICE inline
#define LS_DEVICE_APART inline
#define LS_BOTH inline
#define LS_UNROLL
#define LS_UNROLL_NONE
#endif
