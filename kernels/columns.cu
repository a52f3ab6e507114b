// The sum of each column of a matrix, which is the gradient of a bias. Blocks of 32 columns × 8 rows of threads add up
// chunks of the rows; a second launch adds up the chunks. Without atomics, the same matrix always gives the same bits.
#include "common.cuh"

constexpr int WIDTH = 32, HEIGHT = 8;

// sums [gridDim.y, columns] = for each chunk of `chunk` rows of x [rows, columns], the sum of each column.
extern "C" __global__ void column_sums(const real *x, real *sums, Index rows, Index columns, Index chunk) {
    __shared__ real partial[HEIGHT][WIDTH];
    Index column = (Index)blockIdx.x * WIDTH + threadIdx.x;
    Index begin = blockIdx.y * chunk, end = begin + chunk < rows ? begin + chunk : rows;
    real sum = 0;
    if (column < columns)
        for (Index row = begin + threadIdx.y; row < end; row += HEIGHT) sum += x[row * columns + column];
    partial[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < columns) {
        for (int y = 1; y < HEIGHT; y++) sum += partial[y][threadIdx.x];
        sums[blockIdx.y * columns + column] = sum;
    }
}
