#pragma once
// The types of cuBLAS that LibTorch's headers name.
typedef struct cublasContext* cublasHandle_t;
typedef enum { CUBLAS_STATUS_SUCCESS = 0 } cublasStatus_t;
