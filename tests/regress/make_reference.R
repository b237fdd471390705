# SPDX-License-Identifier: MIT
# Figures of other people's estimators for test_reference.c: run `Rscript make_reference.R` in this folder.
# Debian packages r-base-core, r-cran-locfit, r-cran-kernsmooth; versions are written beside the figures.
#
# locfit evaluates at the rows, without interpolation (ev = dat()). Its Gaussian kernel is exp(-(2.5 u)^2/2),
# so that its h is 2.5 of our bandwidths. KernSmooth bins the data: its figures carry 3 or 4 digits.
library(locfit)
library(KernSmooth)

read <- function(name) read.csv(file.path("..", "..", "data", name))
write <- function(table, name) {
    write.csv(format(table, digits = 15, trim = TRUE), name, row.names = FALSE, quote = FALSE)
}

fit <- function(x, y, factor, degree) {
    z <- scale(x)
    terms <- if (ncol(z) == 1) lp(z[, 1], nn = 0, h = 2.5 * factor, deg = degree)
             else lp(z[, 1], z[, 2], nn = 0, h = 2.5 * factor, deg = degree)
    locfit.raw(terms, y, kern = "gauss", ev = dat(), maxk = 5000)
}

# Weighted least squares at row i by QR. Without row i that is what cross-validation means.
squares <- function(x, y, factor, degree, leave_out) {
    z <- scale(x)
    sapply(seq_along(y), function(i) {
        d <- sweep(z, 2, z[i, ])
        w <- exp(-rowSums(d^2) / (2 * factor^2))
        X <- if (degree) cbind(1, d) else matrix(1, nrow(d), 1)
        keep <- if (leave_out) -i else seq_along(y)
        lm.wfit(X[keep, , drop = FALSE], y[keep], w[keep])$coefficients[1]
    })
}

totals <- NULL
figures <- function(x, y, factor) {
    table <- x
    for (degree in 0:1) {
        f <- fit(x, y, factor, degree)
        p <- predict(f, where = "data", se.fit = TRUE)
        name <- c("constant", "linear")[degree + 1]
        table[[name]] <- p$fit
        table[[paste0(name, "_se")]] <- p$se.fit
        table[[paste0(name, "_qr")]] <- squares(x, y, factor, degree, FALSE)
        residual <- y - squares(x, y, factor, degree, TRUE)
        totals <<- rbind(totals, data.frame(columns = ncol(x), degree = degree, bandwidth = factor,
                                            variance = unname(f$dp["rv"]), parameters = unname(f$dp["df1"]),
                                            left_out = mean(residual^2)))
    }
    table
}

mcycle <- read("mcycle.csv")
table <- figures(mcycle["times"], mcycle$accel, 0.15)
for (degree in 0:1) {
    g <- locpoly(mcycle$times, mcycle$accel, degree = degree, bandwidth = 0.15 * sd(mcycle$times),
                 gridsize = 20001, range.x = range(mcycle$times))
    table[[paste0("binned_", c("constant", "linear")[degree + 1])]] <- approx(g$x, g$y, mcycle$times)$y
}
write(table, "reference_mcycle.csv")

quakes <- read("quakes.csv")
table <- figures(quakes[c("lat", "long")], quakes$depth, 0.4)
write(table[seq(1, nrow(table), 10), ], "reference_quakes.csv")
write(totals, "reference_totals.csv")
writeLines(c(R.version.string, paste("locfit", packageVersion("locfit")),
             paste("KernSmooth", packageVersion("KernSmooth"))), "reference_versions.txt")
