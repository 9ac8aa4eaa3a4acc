#pragma once
// The type of cuBLASLt that LibTorch's headers name.
typedef struct cublasLtContext* cublasLtHandle_t;
