#pragma once
// The type of cuSOLVER that LibTorch's headers name.
typedef enum { CUSOLVER_STATUS_SUCCESS = 0 } cusolverStatus_t;
