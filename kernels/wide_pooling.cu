// Max-pooling over windows of more than 256 pixels.
#include "common.cuh"
#include "images.cuh"
typedef int Place;
#include "windows.cuh"
