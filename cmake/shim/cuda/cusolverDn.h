#pragma once
// The type of cuSOLVER that LibTorch's headers name.
typedef struct cusolverDnContext* cusolverDnHandle_t;
