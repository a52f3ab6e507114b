// Max-pooling of images x [n, height, width, channels] over windows `size` wide, `stride` apart and wholly inside. A row
// of threads takes a pixel and walks along its channels, so that memory is read in runs.
#include "common.cuh"
#include "images.cuh"

// out [n, rows, columns, channels] = the greatest of each window; place = where in it, row by row. The first of equals
// wins; NaN wins over every number.
extern "C" __global__ void max_pool(
    const real *x, real *out, unsigned char *place, Index pixels, int height, int width, int channels, int rows,
    int columns, int size, int stride) {
    for (Index pixel = row_of_threads(); pixel < pixels; pixel += rows_of_threads()) {
        Pixel at = place_of(pixel, rows, columns);
        const real *corner = x + ((Index)(at.image * height + at.y * stride) * width + at.x * stride) * channels;
        for (int c = threadIdx.x; c < channels; c += blockDim.x) {
            real best = corner[c];
            int where = 0;
            for (int down = 0, k = 0; down < size; down++)
                for (int across = 0; across < size; across++, k++) {
                    real value = corner[(down * width + across) * channels + c];
                    if (value > best || value != value) best = value, where = k;
                }
            out[pixel * channels + c] = best;
            place[pixel * channels + c] = (unsigned char)where;
        }
    }
}

// dx [n, height, width, channels] = the dy of every window whose maximum lies there. A thread gathers, window after
// window, for one element of dx: so nothing is added by atomics, and overlapping windows add up in the CPU's order.
extern "C" __global__ void max_unpool(
    const real *dy, const unsigned char *place, real *dx, Index pixels, int height, int width, int channels, int rows,
    int columns, int size, int stride) {
    for (Index pixel = row_of_threads(); pixel < pixels; pixel += rows_of_threads()) {
        Pixel at = place_of(pixel, height, width);
        int top = first_window(at.y, size, stride), left = first_window(at.x, size, stride);
        for (int c = threadIdx.x; c < channels; c += blockDim.x) {
            real sum = 0;
            for (int row = top; row < rows && row * stride <= at.y; row++)
                for (int column = left; column < columns && column * stride <= at.x; column++) {
                    Index window = ((Index)(at.image * rows + row) * columns + column) * channels + c;
                    if (place[window] == (at.y - row * stride) * size + at.x - column * stride) sum += dy[window];
                }
            dx[pixel * channels + c] = sum;
        }
    }
}
