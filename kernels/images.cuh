// Pixels of images [n, height, width, channels], each processed by a row of threads (those with one threadIdx.y).
#pragma once

__device__ inline Index row_of_threads() { return (Index)blockIdx.x * blockDim.y + threadIdx.y; }
__device__ inline Index rows_of_threads() { return (Index)gridDim.x * blockDim.y; }

struct Pixel {
    int image, y, x;
};

__device__ inline Pixel place_of(Index pixel, int height, int width) {
    unsigned p = (unsigned)pixel, row = p / width;  // fewer than 2³² pixels: 64-bit division is slow
    return {(int)(row / height), (int)(row % height), (int)(p % width)};
}

// The first of the windows of width `size` at distances of `stride` that contain pixel x of a row.
__device__ inline int first_window(int x, int size, int stride) { return x < size ? 0 : (x - size) / stride + 1; }
