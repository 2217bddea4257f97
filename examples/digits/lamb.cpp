// SPDX-License-Identifier: MIT
#include "train.hpp"

template void digits::train_with(const lockstep::Lamb&, lockstep::Variables<Real>&, Job&);
