// SPDX-License-Identifier: MIT
#include "train.hpp"

template void digits::train_with(const lockstep::Momentum&, lockstep::Variables<Real>&, Job&);
