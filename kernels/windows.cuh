// Max-pooling of images x [n, height, width, channels] over windows of side `size` at distances of `stride`, inside the
// image, whose positions are a `Place`. A row of threads processes the channels of a pixel, so that memory accesses are
// contiguous.
#pragma once

// out [n, rows, columns, channels] = the maximum of each window; place = its position in the window, row by row. The
// first of equal values is taken; NaN is larger than every number.
extern "C" __global__ void max_pool(
    const real *x, real *out, Place *place, Index pixels, int height, int width, int channels, int rows, int columns,
    int size, int stride) {
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
            place[pixel * channels + c] = (Place)where;
        }
    }
}

// dx [n, height, width, channels] = the sum of dy over the windows whose maximum is there. A thread adds up one element
// of dx over the windows in the order of the CPU, without atomics.
extern "C" __global__ void max_unpool(
    const real *dy, const Place *place, real *dx, Index pixels, int height, int width, int channels, int rows,
    int columns, int size, int stride) {
    for (Index pixel = row_of_threads(); pixel < pixels; pixel += rows_of_threads()) {
        Pixel at = place_of(pixel, height, width);
        int top = first_window(at.y, size, stride), left = first_window(at.x, size, stride);
        for (int c = threadIdx.x; c < channels; c += blockDim.x) {
            real sum = 0;
            for (int row = top; row < rows && row * stride <= at.y; row++)
                for (int column = left; column < columns && column * stride <= at.x; column++) {
                    Index window = ((Index)(at.image * rows + row) * columns + column) * channels + c;
                    real value = dy[window];  // loaded unconditionally, so that it does not wait for the place
                    if (place[window] == (at.y - row * stride) * size + at.x - column * stride) sum += value;
                }
            dx[pixel * channels + c] = sum;
        }
    }
}
