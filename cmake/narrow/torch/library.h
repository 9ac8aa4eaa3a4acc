#pragma once
// Registration of operators.
