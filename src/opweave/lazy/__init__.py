"""Operations called on arrays, deferred contexts and `@jit`: calls that are collected, and run as compiled graphs."""
