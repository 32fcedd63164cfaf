;; A framework's own operation: adds a number to each plane of [channels, plane].
;; Position-independent (it has neither data nor a stack), so that it can share the memory of another module.
(module
  (@dylink.0 (mem-info (memory 0 0)))
  (import "env" "memory" (memory 1))
  (func (export "add") (param $x i32) (param $bias i32) (param $out i32) (param $channels i32) (param $plane i32)
      (result i32) (local $number v128) (local $end i32)
    ;; Four elements at a time, nothing else: a status says so.
    (if (i32.and (local.get $plane) (i32.const 3)) (then (return (i32.const 1))))
    (loop $next_plane
      (local.set $number (v128.load32_splat (local.get $bias)))
      (local.set $bias (i32.add (local.get $bias) (i32.const 4)))
      (local.set $end (i32.add (local.get $x) (i32.shl (local.get $plane) (i32.const 2))))
      (loop $next
        (v128.store (local.get $out) (f32x4.add (v128.load (local.get $x)) (local.get $number)))
        (local.set $out (i32.add (local.get $out) (i32.const 16)))
        (br_if $next (i32.lt_u (local.tee $x (i32.add (local.get $x) (i32.const 16))) (local.get $end))))
      (br_if $next_plane (local.tee $channels (i32.sub (local.get $channels) (i32.const 1)))))
    (i32.const 0)))
