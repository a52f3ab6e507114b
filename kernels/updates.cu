// One step of each update rule in one pass over memory, with the bits of mpitrain/algorithms/optimizers: each line is
// one of the rule's equations, rounded in the same order. The parameter server's update is `sgd` or `classical` with αη
// instead of η. All values are loaded before any is stored, since the compiler cannot exclude that a later load reads a
// stored value.
#include "common.cuh"
#include "exact.cuh"

// θ ← θ − ηg
extern "C" __global__ void sgd(real *theta, const real *g, Index n, real eta) {
    for (Index i = thread(); i < n; i += threads()) theta[i] = sub(theta[i], mul(eta, g[i]));
}

// v ← μv − ηg;  θ ← θ + v. This is also Nesterov's momentum if g was taken at θ + μv (`look_ahead`).
extern "C" __global__ void classical(real *theta, real *v, const real *g, Index n, real eta, real mu) {
    for (Index i = thread(); i < n; i += threads()) {
        real x = theta[i], velocity = accelerated(v[i], g[i], eta, mu);
        v[i] = velocity;
        theta[i] = add(x, velocity);
    }
}

// out ← x + μv
extern "C" __global__ void look_ahead(real *out, const real *x, const real *v, Index n, real mu) {
    for (Index i = thread(); i < n; i += threads()) out[i] = add(mul(mu, v[i]), x[i]);
}

// inc ← μ·inc − εg − ωε·w;  w ← w + inc. `shrink` is ωε (Krizhevsky 2014, §5).
extern "C" __global__ void krizhevsky(real *w, real *inc, const real *g, Index n, real eta, real mu, real shrink) {
    for (Index i = thread(); i < n; i += threads()) {
        real x = w[i], step = accelerated(inc[i], g[i], eta, mu);
        if (shrink != 0) step = sub(step, mul(shrink, x));
        inc[i] = step;
        w[i] = add(x, step);
    }
}

// m ← β₁m + (1 − β₁)g;  v ← β₂v + (1 − β₂)g²;  θ ← θ − η(m̂/(√v̂ + ε) + λθ), with the factors of optimizers/adamw.py
extern "C" __global__ void adamw(real *theta, real *m, real *v, const real *g, Index n, real keep_m, real take_m,
                                 real keep_v, real take_v, real correct_v, real epsilon, real scale, real decay) {
    for (Index i = thread(); i < n; i += threads()) {
        real x = theta[i], gradient = g[i];
        real first = add(mul(keep_m, m[i]), mul(take_m, gradient));
        real second = add(mul(keep_v, v[i]), mul(take_v, mul(gradient, gradient)));
        real step = mul(scale, quotient(first, add(mul(correct_v, root(second)), epsilon)));
        if (decay != 0) step = mul(decay, add(step, x));
        m[i] = first;
        v[i] = second;
        theta[i] = add(x, step);
    }
}

// v ← δv − ηg;  y ← y − ηg + δv (Zhang, Choromanska & LeCun 2015, Supplement)
extern "C" __global__ void mdownpour(real *y, real *v, const real *g, Index n, real eta, real delta) {
    for (Index i = thread(); i < n; i += threads()) {
        real x = y[i], gradient = g[i], velocity = accelerated(v[i], gradient, eta, delta);
        v[i] = velocity;
        y[i] = add(sub(x, mul(eta, gradient)), mul(delta, velocity));
    }
}

// z ← z + a(θ − z)
extern "C" __global__ void moving_average(real *z, const real *theta, Index n, real rate) {
    for (Index i = thread(); i < n; i += threads()) z[i] = add(z[i], mul(rate, sub(theta[i], z[i])));
}

// y ← y + scale·x
extern "C" __global__ void add_scaled(real *y, const real *x, Index n, real scale) {
    for (Index i = thread(); i < n; i += threads()) y[i] = add(y[i], mul(scale, x[i]));
}
