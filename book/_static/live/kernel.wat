;; The two loops that take nearly all of the time, four numbers at once (WebAssembly SIMD).
;; Addresses and strides are in bytes, counts in numbers. All numbers are float32. `kernels.js` has
;; the same in plain JavaScript; tests/project/test_live.py assembles this file and checks both.
(module
  (import "page" "memory" (memory 1))

  ;; c[i, :] = b + a[i, :] w for m rows of k numbers; w is k rows of n. Rows of a and c lie any
  ;; stride apart and may overlap in a, which is how a convolution becomes one product.
  ;; n is a multiple of 8: a block is 4 rows by 8 columns, eight sums that stay in registers.
  (func (export "affine")
    (param $a i32) (param $a_stride i32) (param $w i32) (param $b i32)
    (param $c i32) (param $c_stride i32) (param $m i32) (param $k i32) (param $n i32)
    (local $column i32) (local $row i32) (local $w_stride i32) (local $end i32)
    (local $a0 i32) (local $a1 i32) (local $a2 i32) (local $a3 i32) (local $q i32) (local $o i32)
    (local $b0 v128) (local $b1 v128) (local $w0 v128) (local $w1 v128) (local $s v128)
    (local $x0 v128) (local $x1 v128) (local $y0 v128) (local $y1 v128)
    (local $z0 v128) (local $z1 v128) (local $t0 v128) (local $t1 v128)
    (local.set $w_stride (i32.shl (local.get $n) (i32.const 2)))
    (loop $columns
      (local.set $b0 (v128.load (i32.add (local.get $b) (local.get $column))))
      (local.set $b1 (v128.load offset=16 (i32.add (local.get $b) (local.get $column))))
      (local.set $row (i32.const 0))
      (local.set $a0 (local.get $a))
      (local.set $o (i32.add (local.get $c) (local.get $column)))

      (block $few (loop $four_rows
        (br_if $few (i32.gt_s (i32.add (local.get $row) (i32.const 4)) (local.get $m)))
        (local.set $a1 (i32.add (local.get $a0) (local.get $a_stride)))
        (local.set $a2 (i32.add (local.get $a1) (local.get $a_stride)))
        (local.set $a3 (i32.add (local.get $a2) (local.get $a_stride)))
        (local.set $end (i32.add (local.get $a0) (i32.shl (local.get $k) (i32.const 2))))
        (local.set $q (i32.add (local.get $w) (local.get $column)))
        (local.set $x0 (local.get $b0)) (local.set $x1 (local.get $b1))
        (local.set $y0 (local.get $b0)) (local.set $y1 (local.get $b1))
        (local.set $z0 (local.get $b0)) (local.set $z1 (local.get $b1))
        (local.set $t0 (local.get $b0)) (local.set $t1 (local.get $b1))
        (loop $products
          (local.set $w0 (v128.load (local.get $q)))
          (local.set $w1 (v128.load offset=16 (local.get $q)))
          (local.set $s (v128.load32_splat (local.get $a0)))
          (local.set $x0 (f32x4.add (local.get $x0) (f32x4.mul (local.get $s) (local.get $w0))))
          (local.set $x1 (f32x4.add (local.get $x1) (f32x4.mul (local.get $s) (local.get $w1))))
          (local.set $s (v128.load32_splat (local.get $a1)))
          (local.set $y0 (f32x4.add (local.get $y0) (f32x4.mul (local.get $s) (local.get $w0))))
          (local.set $y1 (f32x4.add (local.get $y1) (f32x4.mul (local.get $s) (local.get $w1))))
          (local.set $s (v128.load32_splat (local.get $a2)))
          (local.set $z0 (f32x4.add (local.get $z0) (f32x4.mul (local.get $s) (local.get $w0))))
          (local.set $z1 (f32x4.add (local.get $z1) (f32x4.mul (local.get $s) (local.get $w1))))
          (local.set $s (v128.load32_splat (local.get $a3)))
          (local.set $t0 (f32x4.add (local.get $t0) (f32x4.mul (local.get $s) (local.get $w0))))
          (local.set $t1 (f32x4.add (local.get $t1) (f32x4.mul (local.get $s) (local.get $w1))))
          (local.set $a1 (i32.add (local.get $a1) (i32.const 4)))
          (local.set $a2 (i32.add (local.get $a2) (i32.const 4)))
          (local.set $a3 (i32.add (local.get $a3) (i32.const 4)))
          (local.set $q (i32.add (local.get $q) (local.get $w_stride)))
          (br_if $products (i32.lt_u
            (local.tee $a0 (i32.add (local.get $a0) (i32.const 4))) (local.get $end))))
        (v128.store (local.get $o) (local.get $x0))
        (v128.store offset=16 (local.get $o) (local.get $x1))
        (local.set $o (i32.add (local.get $o) (local.get $c_stride)))
        (v128.store (local.get $o) (local.get $y0))
        (v128.store offset=16 (local.get $o) (local.get $y1))
        (local.set $o (i32.add (local.get $o) (local.get $c_stride)))
        (v128.store (local.get $o) (local.get $z0))
        (v128.store offset=16 (local.get $o) (local.get $z1))
        (local.set $o (i32.add (local.get $o) (local.get $c_stride)))
        (v128.store (local.get $o) (local.get $t0))
        (v128.store offset=16 (local.get $o) (local.get $t1))
        (local.set $o (i32.add (local.get $o) (local.get $c_stride)))
        (local.set $row (i32.add (local.get $row) (i32.const 4)))
        (local.set $a0 (i32.add (local.get $a)
          (i32.mul (local.get $row) (local.get $a_stride))))
        (br $four_rows)))

      (block $done (loop $one_row
        (br_if $done (i32.ge_s (local.get $row) (local.get $m)))
        (local.set $end (i32.add (local.get $a0) (i32.shl (local.get $k) (i32.const 2))))
        (local.set $q (i32.add (local.get $w) (local.get $column)))
        (local.set $x0 (local.get $b0)) (local.set $x1 (local.get $b1))
        (loop $products
          (local.set $s (v128.load32_splat (local.get $a0)))
          (local.set $x0 (f32x4.add (local.get $x0)
            (f32x4.mul (local.get $s) (v128.load (local.get $q)))))
          (local.set $x1 (f32x4.add (local.get $x1)
            (f32x4.mul (local.get $s) (v128.load offset=16 (local.get $q)))))
          (local.set $q (i32.add (local.get $q) (local.get $w_stride)))
          (br_if $products (i32.lt_u
            (local.tee $a0 (i32.add (local.get $a0) (i32.const 4))) (local.get $end))))
        (v128.store (local.get $o) (local.get $x0))
        (v128.store offset=16 (local.get $o) (local.get $x1))
        (local.set $o (i32.add (local.get $o) (local.get $c_stride)))
        (local.set $row (i32.add (local.get $row) (i32.const 1)))
        (local.set $a0 (i32.add (local.get $a)
          (i32.mul (local.get $row) (local.get $a_stride))))
        (br $one_row)))

      (br_if $columns (i32.lt_u
        (local.tee $column (i32.add (local.get $column) (i32.const 32))) (local.get $w_stride)))))

  ;; x (1 + erf(x / sqrt 2)) / 2, with erf z = z p(z^2) / q(z^2) for |z| <= 4, to 1e-7.
  (func $gelu (param $x v128) (result v128)
    (local $z v128) (local $t v128) (local $p v128) (local $q v128)
    (local.set $z (f32x4.max (f32x4.splat (f32.const -4)) (f32x4.min (f32x4.splat (f32.const 4))
      (f32x4.mul (local.get $x) (f32x4.splat (f32.const 0.7071067811865476))))))
    (local.set $t (f32x4.mul (local.get $z) (local.get $z)))
    (local.set $p (f32x4.splat (f32.const -2.72614225801306e-10)))
    (local.set $p (f32x4.add (f32x4.mul (local.get $p) (local.get $t))
      (f32x4.splat (f32.const 2.77068142495902e-08))))
    (local.set $p (f32x4.add (f32x4.mul (local.get $p) (local.get $t))
      (f32x4.splat (f32.const -2.10102402082508e-06))))
    (local.set $p (f32x4.add (f32x4.mul (local.get $p) (local.get $t))
      (f32x4.splat (f32.const -5.69250639462346e-05))))
    (local.set $p (f32x4.add (f32x4.mul (local.get $p) (local.get $t))
      (f32x4.splat (f32.const -7.34990630326855e-04))))
    (local.set $p (f32x4.add (f32x4.mul (local.get $p) (local.get $t))
      (f32x4.splat (f32.const -2.95459980854025e-03))))
    (local.set $p (f32x4.add (f32x4.mul (local.get $p) (local.get $t))
      (f32x4.splat (f32.const -1.60960333262415e-02))))
    (local.set $q (f32x4.splat (f32.const -1.45660718464996e-05)))
    (local.set $q (f32x4.add (f32x4.mul (local.get $q) (local.get $t))
      (f32x4.splat (f32.const -2.13374055278905e-04))))
    (local.set $q (f32x4.add (f32x4.mul (local.get $q) (local.get $t))
      (f32x4.splat (f32.const -1.68282697438203e-03))))
    (local.set $q (f32x4.add (f32x4.mul (local.get $q) (local.get $t))
      (f32x4.splat (f32.const -7.37332916720468e-03))))
    (local.set $q (f32x4.add (f32x4.mul (local.get $q) (local.get $t))
      (f32x4.splat (f32.const -1.42647390514189e-02))))
    (f32x4.mul
      (f32x4.mul (local.get $x) (f32x4.splat (f32.const 0.5)))
      (f32x4.add (f32x4.splat (f32.const 1))
        (f32x4.div (f32x4.mul (local.get $z) (local.get $p)) (local.get $q)))))

  ;; In place, row by row: x = gelu(x + before) + after, where an address of 0 adds nothing; then,
  ;; if bound > 0, x / sqrt(1 + mean(x^2) / bound^2). n is a multiple of 4.
  (func (export "activate")
    (param $x i32) (param $before i32) (param $after i32) (param $rows i32) (param $n i32)
    (param $bound f32)
    (local $width i32) (local $column i32) (local $v v128) (local $sum v128) (local $scale v128)
    (local.set $width (i32.shl (local.get $n) (i32.const 2)))
    (loop $next_row
      (local.set $sum (f32x4.splat (f32.const 0)))
      (local.set $column (i32.const 0))
      (loop $columns
        (local.set $v (v128.load (i32.add (local.get $x) (local.get $column))))
        (if (local.get $before) (then (local.set $v (f32x4.add (local.get $v)
          (v128.load (i32.add (local.get $before) (local.get $column)))))))
        (local.set $v (call $gelu (local.get $v)))
        (if (local.get $after) (then (local.set $v (f32x4.add (local.get $v)
          (v128.load (i32.add (local.get $after) (local.get $column)))))))
        (local.set $sum (f32x4.add (local.get $sum) (f32x4.mul (local.get $v) (local.get $v))))
        (v128.store (i32.add (local.get $x) (local.get $column)) (local.get $v))
        (br_if $columns (i32.lt_u
          (local.tee $column (i32.add (local.get $column) (i32.const 16))) (local.get $width))))
      (if (f32.gt (local.get $bound) (f32.const 0)) (then
        (local.set $scale (f32x4.splat (f32.div (f32.const 1) (f32.sqrt (f32.add (f32.const 1)
          (f32.div
            (f32.add
              (f32.add (f32x4.extract_lane 0 (local.get $sum)) (f32x4.extract_lane 1 (local.get $sum)))
              (f32.add (f32x4.extract_lane 2 (local.get $sum)) (f32x4.extract_lane 3 (local.get $sum))))
            (f32.mul (f32.convert_i32_s (local.get $n))
              (f32.mul (local.get $bound) (local.get $bound)))))))))
        (local.set $column (i32.const 0))
        (loop $columns
          (v128.store (i32.add (local.get $x) (local.get $column)) (f32x4.mul (local.get $scale)
            (v128.load (i32.add (local.get $x) (local.get $column)))))
          (br_if $columns (i32.lt_u
            (local.tee $column (i32.add (local.get $column) (i32.const 16))) (local.get $width))))))
      (local.set $x (i32.add (local.get $x) (local.get $width)))
      (if (local.get $before)
        (then (local.set $before (i32.add (local.get $before) (local.get $width)))))
      (if (local.get $after)
        (then (local.set $after (i32.add (local.get $after) (local.get $width)))))
      (br_if $next_row
        (local.tee $rows (i32.sub (local.get $rows) (i32.const 1)))))))
